"""Runs one node without a gateway, for clients over HTTP, until it is told to stop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serving import http
from serving.beside import bind_grpc_server
from serving.config import NodeConfig
from serving.cross_origin import CrossOriginPolicy
from serving.errors import ServingError
from serving.node.acceleration import Acceleration
from serving.node.app import Node, Report
from serving.node.front import Loaded, Predictions
from serving.node.hang_guard import guard_calls
from serving.node.practice import questions
from serving.node.practice_http import practise
from serving.node.predict import Predictor
from serving.node.routes import application
from serving.runtimes import LoadSpec
from serving.schema import ModelSchema

if TYPE_CHECKING:  # gRPC is imported only where it is switched on
    from serving.grpc.server import Tell

# How often all that clients ask is practised: Python has made functions fast by then. Models that take long
# are asked less: what is practised is a small part of their answer.
_ROUNDS, _PRACTICE = 20, 0.25
# Seconds that the first answer may be delayed by finding out whether requests may share calls. It is enough
# for short calls; of longer ones the rest is made while the node serves.
_PATIENCE = 0.05


@dataclass(frozen=True, slots=True)
class _Practised:
    """What clients do not see of a node."""

    predictor: Predictor


async def serve(
    source: LoadSpec,
    settings: NodeConfig,
    listener: socket.socket,
    *,
    cross_origin: CrossOriginPolicy,
    acceleration: Acceleration | None = None,
    announce: Callable[[str], None],
    on_ready: Callable[[Report], None],
    on_failed: Callable[[ServingError], None],
) -> int:
    """Serve until SIGTERM (exit code 0), or until it cannot start or go on (exit code 1).

    There is no board to mark, and nothing is counted. `acceleration` has the model's faster ways, if any.
    `announce` is called with the address of gRPC, if that is switched on.
    """
    failed = asyncio.Event()

    def ready(report: Report) -> None:
        if grpc is not None:
            grpc.ready()
        on_ready(report)

    def stop(error: ServingError) -> None:
        on_failed(error)
        failed.set()
        server.stop()

    async def practice(predictor: Predictor, schema: ModelSchema) -> None:
        connection = await server.open_private_connection(predictions(_Practised(predictor), lambda: 1))
        with connection:
            await practise(connection, list(questions(schema)), _ROUNDS, _PRACTICE)
        if grpc is not None:
            await _practise_grpc(
                predictions(_Practised(predictor), lambda: 1), _questions(node), schema, settings
            )

    def predictions(node: Loaded, connections: Callable[[], int]) -> Predictions:
        return Predictions(
            node,
            max_body_bytes=settings.max_body_bytes,
            timeout=settings.request_timeout,
            connections=connections,
            route=settings.predict_route,
        )

    node = Node(
        source,
        settings,
        marks=bytearray(),
        waking=False,
        patience=_PATIENCE,
        acceleration=acceleration,
        practice=practice,
        on_ready=ready,
        on_failed=stop,
    )
    guard_calls(node.call_mark, settings.call_seconds)
    handler = predictions(node, lambda: server.open_connections + (0 if grpc is None else grpc.under_way))
    grpc = bind_grpc_server(
        settings, settings.host, handler, lambda: _questions(node), announce, cross_origin=cross_origin
    )
    server = http.make_http_server(
        application(node, settings.health_route),
        settings=settings,
        drain=settings.request_timeout,
        handler=handler,
        companion=grpc,
        cross_origin=cross_origin,
        stop_timeout=settings.stop_timeout,
    )
    await server.serve(sockets=[listener])
    return 1 if failed.is_set() else server.exit_code


def _questions(node: Node) -> Tell:
    from serving.node.grpc import Questions  # noqa: PLC0415  only where gRPC is switched on

    return Questions(node)


async def _practise_grpc(handler: Predictions, tell: Tell, schema: ModelSchema, settings: NodeConfig) -> None:
    from serving.grpc.practice import practise  # noqa: PLC0415  only where gRPC is switched on
    from serving.grpc.server import GrpcServer  # noqa: PLC0415
    from serving.node.practice_grpc import questions  # noqa: PLC0415

    asked = [(question.call, question.body) for question in questions(schema)]
    server = GrpcServer(handler, tell, settings, most_connections=1)
    await practise(server, asked * _ROUNDS, _PRACTICE)
