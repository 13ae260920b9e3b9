"""Warms up a spare node process by serving tiny models, or as the framework says where those leave threads.

Libraries initialise lazily at their first call, and a fork copies each page of memory at the first write to
it. After the warm-up no request waits for either. No thread is left, and random state that models draw from
is not touched.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import uvloop

from serving.acceleration.activation import store_result
from serving.acceleration.candidates import AccelerableRuntime
from serving.acceleration.verification import CandidateResult, SizeTiming, VerificationResult
from serving.acceleration_record import AccelerationKey, RecordLocation
from serving.config import PredictSettings
from serving.errors import ServingError
from serving.frameworks import Framework, import_object, load_frameworks
from serving.http_headers import Headers
from serving.node.acceleration_controller import AccelerationController
from serving.node.app import ServingNode, warm_up_all_protocols
from serving.node.main import NodeArguments
from serving.node.request import NodeRequest
from serving.runtimes import load_model
from serving.scratch_folders import scratch_folder

_BODY = b'{"instances": [[0.5, 1.5], [1, 0]]}'
_KEY = AccelerationKey("", "", "")
_TIMEOUT_SECONDS = 10.0


def warm_up_frameworks() -> Iterator[None]:
    """For all frameworks that the pilot has imported; each step takes some ten milliseconds."""
    for framework in load_frameworks().values():
        if framework.tiny_model.partition(":")[0] in sys.modules:
            yield from _warm_up_framework(framework)
        if framework.threadless_warmup.partition(":")[0] in sys.modules:
            import_object(framework.threadless_warmup)()
            yield


def _warm_up_framework(framework: Framework) -> Iterator[None]:
    with scratch_folder("rehearsal") as folder:
        model_dir, record_dir = folder / "model", folder / "ways"
        model_dir.mkdir()
        import_object(framework.tiny_model)(model_dir)
        fields = {
            "model_dir": str(model_dir),
            "framework": framework.name,
            "acceleration": {"folder": str(record_dir), "key": msgspec.to_builtins(_KEY)},
        }
        arguments = msgspec.convert(fields, NodeArguments)
        yield
        _store_stub_record(arguments, record_dir)
        yield
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run_node_once(arguments, RecordLocation(str(record_dir), _KEY)))
        for thread in threading.enumerate():
            if thread is not threading.current_thread():
                thread.join(_TIMEOUT_SECONDS)
        yield


def _store_stub_record(arguments: NodeArguments, folder: Path) -> None:
    """Store a record with every candidate, each as if it were the fastest for some batch size."""
    runtime = load_model(arguments.make_load_spec(1))
    if not isinstance(runtime, AccelerableRuntime):
        return
    proofs = tuple(CandidateResult(candidate, candidate.build()) for candidate in runtime.list_candidates())
    timings = tuple(
        SizeTiming(1 << index, 1.0, {proof.candidate.name: 0.1}) for index, proof in enumerate(proofs)
    )
    store_result(folder, _KEY, VerificationResult(proofs, timings, {}), 0.0)


async def _run_node_once(arguments: NodeArguments, location: RecordLocation) -> None:
    """Run a node as of a sleeping version, until it has answered its warm-up and one more request."""
    source = arguments.make_load_spec(1)
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    answered: asyncio.Future[None] = loop.create_future()

    def set_error(error: ServingError) -> None:
        ready.set_exception(error)

    node = ServingNode(
        source,
        PredictSettings(merge_requests="on"),
        marks=bytearray(1),
        waking=True,
        acceleration=AccelerationController(source, lambda: location),
        protocol_warmup=warm_up_all_protocols,
        on_ready=lambda _: ready.set_result(None),
        on_failed=set_error,
    )
    node.start()
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            await ready
            if node.predictor is not None:
                node.predictor.predict(
                    _DiscardedRequest(answered), _BODY, _TIMEOUT_SECONDS, idle_fast_path=False
                )
                node.predictor.start_now()
                await answered
    finally:
        node.stop()


class _DiscardedRequest(NodeRequest):
    """A request whose answer is discarded."""

    __slots__ = ("_answered",)

    def __init__(self, answered: asyncio.Future[None]) -> None:
        super().__init__(0, wants_timing=True)
        self._answered = answered

    def respond(self, status: int, body: bytes, headers: Headers) -> None:
        self._answered.set_result(None)
