"""Runs one node of a pool in its process, on a unix socket, until it is told to stop."""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from serving.config import PredictSettings
from serving.container_engine import ContainerRunConfig
from serving.errors import ResourceShortage, ServingError, Unavailable
from serving.latency_histograms import LatencyHistograms
from serving.model_schema import ModelSchema, unpack_outline
from serving.node.acceleration_controller import (
    AccelerationController,
    RecordLocation,
    find_comparison_counts,
)
from serving.node.app import ReadyReport, ServingNode
from serving.node.gateway_channel import GatewayChannelServer
from serving.node.request_marks import RequestMarks, split_shared_memory
from serving.runtimes import ExternalInterpreter, LoadSpec, ModelContainer
from serving.transport.event_loop import run_event_loop


class NodeArguments(msgspec.Struct, frozen=True, kw_only=True):
    """What the gateway tells a node it starts; `settings` are fields of PredictSettings.

    `waking`: the version was deployed before, so what it does with the largest merge is known. `slots`: how
    many marks the board has, with room behind them to count how long requests take; 0: it is all marks.
    `acceleration` is where the verdict on the model's faster ways belongs; None: there are to be none.
    `schema` is what the version is known to take and answer, packed; "": the node is to find out.
    `interpreter` is another Python that computes the model, `pilot` where a process waits that has imported
    its libraries. `container` is what serves the model in place of all that.
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

    def make_source(self, threads: int, on_companion_start: Callable[[int], None] | None = None) -> LoadSpec:
        """Where the runtime is loaded from; `on_predictor` is told the pid of a predictor or container."""
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

    Returns the exit code. `board` is memory shared with the gateway; see `serving.node.request_marks`.
    """
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(message)s")
    given = msgspec.convert(dict(arguments), NodeArguments)
    settings = PredictSettings(**given.settings)
    marks, histograms = split_shared_memory(board, given.slots)
    source = given.make_source(settings.threads, lambda pid: report({"companion": pid}))
    acceleration = None
    if (place := given.acceleration) is not None:
        acceleration = AccelerationController(
            source, lambda: place, find_comparison_counts(board, given.slots)
        )
        if not given.waking:
            acceleration.verify_before_load()
    return run_event_loop(
        _serve_until_stopped(
            source,
            settings,
            listener,
            marks=marks,
            histograms=histograms,
            waking=given.waking,
            schema=unpack_outline(given.schema) if given.schema else None,
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
            on_failed(error)  # of others the pool makes a crash, and tries again
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
