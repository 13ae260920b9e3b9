"""Runs one node of a pool in its process, on a unix socket, until SIGTERM."""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from serving.acceleration_record import RecordLocation
from serving.config import PredictSettings
from serving.container_engine import ContainerRunConfig
from serving.errors import ResourceShortage, ServingError, Unavailable
from serving.latency_histograms import LatencyHistograms
from serving.model_schema import ModelSchema, unpack_outline
from serving.node.acceleration_controller import (
    AccelerationController,
    view_comparison_counts,
)
from serving.node.app import ReadyReport, ServingNode
from serving.node.gateway_channel import GatewayChannelServer
from serving.node.request_marks import RequestMarks, split_shared_memory
from serving.runtimes import ExternalInterpreter, LoadSpec, ModelContainer
from serving.transport.event_loop import run_event_loop


class NodeArguments(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of a pool node, sent by the gateway; `settings` are fields of PredictSettings.

    `waking`: the version was loaded before, so a brief warm-up is enough. `slots`: how many request marks the
    shared memory has, with histograms behind them; 0: it has marks only. `acceleration`: the location of the
    model's acceleration record; None: no acceleration. `schema`: the known schema, packed; "": the node
    infers it. `interpreter`: another Python that computes the model; `pilot`: the address of its pilot.
    `container` serves the model in place of all that.
    """

    model_dir: str
    framework: str = ""
    prediction_class: str = ""
    method: str = ""
    packages: tuple[str, ...] = ()
    settings: dict[str, Any] = {}
    waking: bool = False
    slots: int = 0
    acceleration: RecordLocation | None = None
    schema: str = ""
    interpreter: str = ""
    pilot: str = ""
    container: ContainerRunConfig | None = None

    def make_load_spec(
        self, threads: int, on_companion_start: Callable[[int], None] | None = None
    ) -> LoadSpec:
        """What to load; `on_companion_start` gets the pid of a predictor process or container."""
        external = None
        if self.interpreter:
            external = ExternalInterpreter(self.interpreter, self.pilot, on_companion_start, shared_fate=True)
        contained = None
        if self.container is not None:
            contained = ModelContainer(self.container, on_companion_start, shared_fate=True)
        return LoadSpec(
            model_dir=Path(self.model_dir),
            framework=self.framework,
            prediction_class=self.prediction_class,
            packages=tuple(Path(package) for package in self.packages),
            threads=threads,
            external=external,
            model_container=contained,
            method=self.method,
        )


def start(
    arguments: Mapping[str, Any],
    listener: socket.socket,
    report: Callable[[Mapping[str, Any]], None],
    board: RequestMarks,
) -> int:
    """The entry of a pool's node: reports {"ready": ...}, {"failed": reason} or {"short": of what}.

    Returns the exit code. `board` is the memory shared with the gateway; see `serving.node.request_marks`.
    """
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(message)s")
    parsed = msgspec.convert(dict(arguments), NodeArguments)
    settings = PredictSettings(**parsed.settings)
    marks, histograms = split_shared_memory(board, parsed.slots)
    source = parsed.make_load_spec(settings.threads, lambda pid: report({"companion": pid}))
    acceleration = None
    if (location := parsed.acceleration) is not None:
        acceleration = AccelerationController(
            source, lambda: location, view_comparison_counts(board, parsed.slots)
        )
        if not parsed.waking:
            acceleration.verify_before_load()
    return run_event_loop(
        _serve_until_stopped(
            source,
            settings,
            listener,
            marks=marks,
            histograms=histograms,
            waking=parsed.waking,
            schema=unpack_outline(parsed.schema) if parsed.schema else None,
            acceleration=acceleration,
            on_ready=lambda ready: report({"ready": ready.to_dict()}),
            on_failed=lambda error: report(
                {"short" if isinstance(error, ResourceShortage) else "failed": error.message}
            ),
        )
    )


async def _serve_until_stopped(
    source: LoadSpec,
    settings: PredictSettings,
    listener: socket.socket,
    *,
    marks: RequestMarks,
    histograms: LatencyHistograms | None,
    waking: bool,
    schema: ModelSchema | None,
    acceleration: AccelerationController | None,
    on_ready: Callable[[ReadyReport], None],
    on_failed: Callable[[ServingError], None],
) -> int:
    """Serve until SIGTERM (exit code 0) or until loading fails (exit code 1)."""
    failed = False

    def handle_failure(error: ServingError) -> None:
        nonlocal failed
        failed = True
        if not isinstance(error, Unavailable) or isinstance(error, ResourceShortage):
            on_failed(error)  # the pool treats others as a crash, and tries again
        server.stop()

    node = ServingNode(
        source,
        settings,
        marks=marks,
        histograms=histograms,
        waking=waking,
        schema=schema,
        acceleration=acceleration,
        on_ready=on_ready,
        on_failed=handle_failure,
    )
    server = GatewayChannelServer(
        lambda: node.predictor,
        slots=len(marks),
        max_body_bytes=settings.max_body_bytes,
        drain_seconds=settings.request_timeout,
    )
    node.start()
    await server.serve(listener)
    node.stop()
    return 1 if failed else 0
