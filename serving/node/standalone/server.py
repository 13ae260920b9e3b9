"""Runs one node without a gateway, for clients over HTTP and gRPC, until SIGTERM."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serving.config import NodeConfig
from serving.errors import ServingError
from serving.hang_detection import HangLimits, LivenessReading, StallTimes, describe_hang, update_stall
from serving.model_schema import ModelSchema
from serving.node.acceleration_controller import AccelerationController
from serving.node.app import ReadyReport, ServingNode
from serving.node.predict import NodePredictor
from serving.node.request_marks import CallMark
from serving.node.standalone.prediction_handler import PredictorProvider, StandalonePredictionHandler
from serving.node.standalone.routes import DEFAULT_VERSION, NodeModelInfo, create_app
from serving.node.warmup.protocol_warmup import make_http_examples, warm_up_connection
from serving.protocols import Reply
from serving.protocols.errors import render_error
from serving.runtimes import LoadSpec
from serving.transport import http_server
from serving.transport.cross_origin import CrossOriginPolicy
from serving.transport.grpc_startup import bind_grpc_server

if TYPE_CHECKING:  # gRPC is imported only where it is switched on
    from serving.transport.grpc_server.call import GrpcCall
    from serving.transport.grpc_server.server import ModelServiceHandler

logger = logging.getLogger(__name__)

# Rounds of warm-up, by which CPython has specialised the functions, and their limit in seconds: slow models
# get fewer rounds, since decoding and encoding are a small part of their latency.
_WARMUP_ROUNDS, _WARMUP_SECONDS = 20, 0.25
# Seconds that the batch-equivalence check may delay readiness: enough for models with short calls. The rest
# runs while the node serves.
_BATCH_CHECK_SECONDS = 0.05
# Seconds between two looks at the model's call.
_CHECK_INTERVAL = 0.5


@dataclass(frozen=True, slots=True)
class _WarmupPredictorProvider:
    """Provides the predictor of a node that is not ready yet."""

    predictor: NodePredictor


async def serve_standalone(
    source: LoadSpec,
    settings: NodeConfig,
    listener: socket.socket,
    *,
    cross_origin: CrossOriginPolicy,
    acceleration: AccelerationController | None = None,
    announce: Callable[[str], None],
    on_ready: Callable[[ReadyReport], None],
    on_failed: Callable[[ServingError], None],
) -> int:
    """Serve until SIGTERM (exit code 0), or until it cannot start or go on (exit code 1).

    `announce` is called with the address of gRPC, if that is switched on.
    """
    failed = asyncio.Event()

    def report_ready(report: ReadyReport) -> None:
        if grpc is not None:
            grpc.mark_ready()
        on_ready(report)

    def stop_on_failure(error: ServingError) -> None:
        on_failed(error)
        failed.set()
        server.stop()

    async def warm_up(predictor: NodePredictor, schema: ModelSchema) -> None:
        connection = await server.open_private_connection(
            make_handler(_WarmupPredictorProvider(predictor), lambda: 1)
        )
        with connection:
            await warm_up_connection(
                connection, list(make_http_examples(schema)), _WARMUP_ROUNDS, _WARMUP_SECONDS
            )
        if grpc is not None:
            await _warm_up_grpc(
                make_handler(_WarmupPredictorProvider(predictor), lambda: 1),
                _make_metadata_service(node),
                schema,
                settings,
            )

    def make_handler(node: PredictorProvider, connections: Callable[[], int]) -> StandalonePredictionHandler:
        return StandalonePredictionHandler(
            node,
            max_body_bytes=settings.max_body_bytes,
            timeout=settings.request_timeout,
            connections=connections,
            route=settings.predict_route,
        )

    node = ServingNode(
        source,
        settings,
        marks=bytearray(),
        waking=False,
        batch_check_seconds=_BATCH_CHECK_SECONDS,
        acceleration=acceleration,
        protocol_warmup=warm_up,
        on_ready=report_ready,
        on_failed=stop_on_failure,
    )
    start_call_watchdog(node.call_mark, settings.call_seconds)
    handler = make_handler(node, lambda: server.open_connections + (0 if grpc is None else grpc.active_calls))
    grpc = bind_grpc_server(
        settings,
        settings.host,
        handler,
        lambda: _make_metadata_service(node),
        announce,
        cross_origin=cross_origin,
    )
    server = http_server.make_http_server(
        create_app(node, settings.health_route),
        settings=settings,
        drain=settings.request_timeout,
        handler=handler,
        companion=grpc,
        cross_origin=cross_origin,
        stop_timeout=settings.stop_timeout,
    )
    await server.serve(sockets=[listener])
    return 1 if failed.is_set() else server.exit_code


def _make_metadata_service(node: ServingNode) -> ModelServiceHandler:
    """Answers metadata calls over gRPC: the node's one version answers for any name."""
    from serving.transport.grpc_server.metadata_service import answer_metadata_call  # noqa: PLC0415  only where gRPC is switched on

    async def answer_call(call: GrpcCall) -> Reply:
        try:
            spec = call.head.read_model_spec() if call.rpc.has_model_name else None
            info = NodeModelInfo(node, _resolve_version_id((spec and spec.version) or DEFAULT_VERSION))
            model = "" if spec is None else spec.model
            return Reply(200, await answer_metadata_call(call.rpc, call.body, model, info))
        except ServingError as error:
            return render_error(error, call.rpc.dialect)

    return answer_call


def _resolve_version_id(version: str) -> str:
    """The id of a version by a client's name for it: the number 3 stands for v3."""
    return f"v{version}" if version.isdigit() else version


async def _warm_up_grpc(
    handler: StandalonePredictionHandler,
    metadata: ModelServiceHandler,
    schema: ModelSchema,
    settings: NodeConfig,
) -> None:
    from serving.node.warmup.grpc_warmup import make_grpc_examples  # noqa: PLC0415
    from serving.transport.grpc_server.server import GrpcServer, run_warmup_server  # noqa: PLC0415  only where gRPC is switched on

    calls = [(example.call, example.body) for example in make_grpc_examples(schema)]
    server = GrpcServer(handler, metadata, settings, most_connections=1)
    await run_warmup_server(server, calls * _WARMUP_ROUNDS, _WARMUP_SECONDS)


def start_call_watchdog(call_mark: CallMark, call_timeout: float) -> None:
    """End this process with exit code 1 once a call takes more than that many seconds (infinity: never).

    A thread watches, since the event loop may be what computes. Compiled code that holds the GIL blocks this
    thread too; then the node's health checks fail as well.
    """
    if math.isfinite(call_timeout):
        limits = HangLimits(call=call_timeout, silent=math.inf)
        thread = threading.Thread(
            target=_watch_calls, args=(call_mark, limits), name="hang-guard", daemon=True
        )
        thread.start()


def _watch_calls(call_mark: CallMark, limits: HangLimits) -> None:
    stall, checked_at = StallTimes(), time.monotonic()
    while not (reason := describe_hang(stall, limits)):
        time.sleep(_CHECK_INTERVAL)
        now = time.monotonic()
        # Capped, since this process or the whole machine may have been suspended.
        seconds, checked_at = min(now - checked_at, 2 * _CHECK_INTERVAL), now
        stall = update_stall(stall, LivenessReading(call=call_mark.current_call_number), seconds)
    logger.critical("The node ends: %s. This is what its threads do:", reason)
    faulthandler.dump_traceback(sys.stderr)
    sys.stderr.flush()
    os._exit(1)
