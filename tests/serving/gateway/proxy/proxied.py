"""A proxy with all its components, and nodes that do what a test says."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from autoscaler.activator import Activator
from autoscaler.decision import ScalingSpec
from autoscaler.node_memory import Mark
from autoscaler.pools import Node, NodeState
from autoscaler.scaling_loop import Autoscaler
from autoscaler.supervision import Supervisor
from serving.config import ServeConfig, ServerSettings
from serving.gateway.audit.audit_log import AuditLog
from serving.gateway.observability.observers import PredictionObservers
from serving.gateway.observability.prediction_stats import PredictionStats
from serving.gateway.observability.request_log import RequestLog
from serving.gateway.observability.tracing import Tracing
from serving.gateway.observability.wait_recorder import WaitRecorder
from serving.gateway.proxy.prediction_proxy import PredictionProxy, ProxiedRequest
from serving.gateway.proxy.rate_limits import PredictionLimits
from serving.gateway.proxy.routing_table import RoutingTable
from serving.gateway.state.catalog_state import CatalogState, Commit
from serving.gateway.state.records import ModelRecord, VersionRecord
from serving.http_headers import Headers
from serving.names import ModelName, VersionName
from serving.resources import Model, Version, VersionState
from serving.transport.framing import (
    NEVER_BATCH,
    PREDICT_FRAME,
    REQUEST_HEADER,
    RESPONSE_HEADER,
    WANTS_TIMING,
)
from serving.transport.request import HttpRequest
from serving.transport.request_head import RequestHead
from tests.autoscaler.fakes import Clock, FakePool, settle, spec
from tests.bounds import HANG_SECONDS
from tests.garbage import nothing_for_the_collector
from tests.http_requests import Answered, Peer

NAME = VersionName("p", "m", "v")
PATH = f"/v1/{NAME}:predict"
# The same model, as clients of other protocols ask for it.
OTHERS = [
    "/v1/models/m:predict",
    "/v1/models/m/versions/v:predict",
    "/v1/models/m/labels/v:predict",
    "/v2/models/m/infer",
    "/v2/models/projects/p/models/m/versions/v/infer",
]
PREDICT = "tensorflow.serving.PredictionService.Predict"
MIB = 1 << 20


@dataclass
class Seen:
    """A request as a node sees it."""

    node: Node
    slot: int
    timeout: float
    alone: bool
    timing: bool
    about: bytes
    body: bytes

    def mark(self, mark: Mark) -> None:
        self.node.shared.marks[self.slot] = mark


# What a node does with a request: the body of its answer, b"" to hang up, or None to die.
Reply = Callable[[Seen], Awaitable[bytes | None]]


async def good(seen: Seen) -> bytes | None:
    seen.mark(Mark.COMPUTED)
    return b'{"predictions": [%b]}' % seen.node.id.encode()


class BrokenStats(PredictionStats):
    """Counts nothing, and breaks."""

    def get_or_create(self, key: str) -> Any:
        raise RuntimeError


def dying(mark: Mark) -> Reply:
    async def die(seen: Seen) -> bytes | None:
        seen.mark(mark)
        return None

    return die


def no_log(folder: Path) -> RequestLog:
    return RequestLog.from_config(ServeConfig(state_dir=folder), {}, Supervisor())


class World:
    """A proxy with all its components. Nodes are up as soon as they are started, unless `held`.

    `replies` are what the nodes do, in the order in which they were started; the last holds for all further.
    """

    def __init__(
        self,
        folder: Path,
        limits: ServerSettings,
        queue_requests: int,
        shares: PredictionLimits | None,
        tracing: Tracing | None,
    ) -> None:
        self.clock = Clock()
        self.free = 1 << 40
        self.replies: list[Reply] = [good]
        self.seen: list[Seen] = []
        self.status = 200  # of what nodes answer
        self.withdrawn = 0
        self.held = False
        self.activator = Activator(queue_requests=queue_requests, queue_bytes=1 << 20, clock=self.clock)
        self.pool = FakePool(self.clock, str(folder), lambda: self.free)
        self.autoscaler = Autoscaler(
            self.activator,
            self.pool,
            tick=1.0,
            memory_bytes=0,
            on_trouble=lambda *_: None,
            supervisor=Supervisor(),
            clock=self.clock,
        )
        self.activator.connect_waker(self.autoscaler)
        self.routing_table = RoutingTable(lambda _: spec(concurrency=2))
        audit = AuditLog(ServeConfig(state_dir=folder))
        request_log = no_log(folder)
        self.stats = PredictionStats()
        self.waits = WaitRecorder(self.clock)
        self.observers = PredictionObservers(self.stats, self.waits, request_log, audit, tracing)
        self.proxy = PredictionProxy(
            self.routing_table,
            self.activator,
            self.observers,
            limits,
            limits=shares,
            default_project=NAME.project,
        )
        self.pool.listeners += [
            self.activator.on_node_changed,
            self.autoscaler.on_node_changed,
            self._changed,
        ]
        self._tasks = asyncio.TaskGroup()
        self._order: list[str] = []
        self._servers: dict[str, asyncio.Server] = {}
        self._writers: dict[str, list[asyncio.StreamWriter]] = {}
        self._computing: dict[str, list[asyncio.Task[None]]] = {}

    async def __aenter__(self) -> World:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *details: Any) -> None:
        self.held = True
        await self._tasks.__aexit__(None, None, None)
        for node in self.pool.living:
            self.proxy.close_node_client(node)
            self._close(node)
        await settle()  # uvloop does not end while connections are open

    def undeploy(self) -> None:
        """The version, as it is deleted."""
        self.routing_table.apply_commit(
            Commit(self.routing_table.state, CatalogState(), {("versions", str(NAME)): None})
        )

    def deploy(self, *, start_seconds: float | None = None, **fields: Any) -> None:
        """The version, as it is created."""
        version = Version(name=str(NAME), state=VersionState.READY, **fields)
        record = VersionRecord(name=NAME, uid="v", version=version)
        models = {NAME.parent: ModelRecord(name=ModelName("p", "m"), model=Model(), default="v")}
        self.routing_table.apply_commit(Commit.from_state(CatalogState(models, {NAME: record})))
        self.autoscaler.track_version(
            spec(concurrency=2), ScalingSpec(max_nodes=1), memory=100 * MIB, start_seconds=start_seconds
        )

    async def post(
        self,
        body: bytes = b"{}",
        *,
        path: str = PATH,
        within: str | None = None,
        left: asyncio.Event | None = None,
        traceparent: bytes | None = None,
        timing: bytes | None = None,
        others: Headers = (),
    ) -> Answered:
        """One request that gives itself `within` seconds; `left` is set when the client goes away."""
        headers = [*others] if within is None else [*others, (b"x-request-timeout", within.encode())]
        headers += [] if traceparent is None else [(b"traceparent", traceparent)]
        headers += [] if timing is None else [(b"x-pilotlight-timing", timing)]
        peer = Peer()
        request = HttpRequest(RequestHead("POST", path, headers), peer)
        self.proxy.on_request_head(request)
        if not request.response_complete:
            request.body = body
            self.proxy.on_request_complete(request)
        if left is not None:
            leaving = asyncio.ensure_future(left.wait())
            await asyncio.wait((leaving, peer.answered), return_when=asyncio.FIRST_COMPLETED)
            leaving.cancel()
            request.handle_disconnect()
            await settle()
            await asyncio.sleep(0.01)
            return peer.answered.result() if peer.answered.done() else Answered()
        return await peer.answered

    async def up(self, node: Node) -> None:
        """Have a node listen and be ready."""
        reply = self.replies[min(self._order.index(node.id), len(self.replies) - 1)]
        connections = self._writers[node.id] = []
        computing = self._computing[node.id] = []

        async def answer(number: int, seen: Seen, writer: asyncio.StreamWriter) -> None:
            body = await reply(seen)
            if body is None:
                self._die(node)
            if not body:
                writer.transport.abort()
                return
            timing = b"server-timing: infer;dur=1.5\r\n" if seen.timing else b""
            writer.write(
                RESPONSE_HEADER.pack(number, self.status, len(timing), len(timing) + len(body))
                + timing
                + body
            )

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connections.append(writer)
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    number, seen = await self._read(node, reader)
                    if seen is not None:
                        computing.append(asyncio.create_task(answer(number, seen, writer)))

        self._servers[node.id] = await asyncio.start_unix_server(serve, node.address)
        if node.state is NodeState.STARTING:
            self.pool.ready(node)

    async def until(self, true: Callable[[], bool]) -> None:
        """Let things happen until something is so."""
        while not true():
            await settle()

    @property
    def started(self) -> int:
        """How many nodes there have been."""
        return len(self._order)

    async def _read(self, node: Node, reader: asyncio.StreamReader) -> tuple[int, Seen | None]:
        head = REQUEST_HEADER.unpack(await reader.readexactly(REQUEST_HEADER.size))
        kind, flags, number, slot, timeout, metadata_size, length = head
        if kind != PREDICT_FRAME:
            self.withdrawn += 1
            return number, None
        content = await reader.readexactly(length)
        about, body = content[:metadata_size], content[metadata_size:]
        seen = Seen(node, slot, timeout, bool(flags & NEVER_BATCH), bool(flags & WANTS_TIMING), about, body)
        self.seen.append(seen)
        return number, seen

    def _changed(self, node: Node) -> None:
        if node.state is NodeState.STARTING:
            self._order.append(node.id)
            if not self.held:
                self._tasks.create_task(self.up(node))
        if node.state is NodeState.GONE:
            self.proxy.close_node_client(node)
            self._close(node)

    def _die(self, node: Node) -> None:
        """The connections close first; that the process has ended is noticed a little later."""
        self._close(node)
        reason = f"Node {node.id} died of signal SIGSEGV."
        asyncio.get_running_loop().call_later(0.005, self.pool.crash, node, reason)

    def _close(self, node: Node) -> None:
        server = self._servers.pop(node.id, None)
        if server is not None:
            server.close()
        for writer in self._writers.pop(node.id, []):
            writer.transport.abort()
        for task in self._computing.pop(node.id, []):
            if task is not asyncio.current_task():
                task.cancel()


def run(
    tmp_path: Path,
    main: Callable[[World], Awaitable[None]],
    *,
    request_timeout: float = 60.0,
    queue_requests: int = 100,
    queue_bytes: int = 1 << 20,
    shares: PredictionLimits | None = None,
    tracing: Tracing | None = None,
) -> None:
    """A test with a world of its own; at its end nothing of its requests is left."""

    async def bounded() -> None:
        async with asyncio.timeout(HANG_SECONDS):
            limits = ServerSettings(request_timeout=request_timeout, queue_bytes=queue_bytes)
            async with World(tmp_path, limits, queue_requests, shares, tracing) as world:
                await main(world)
                assert world.proxy.held_bytes == 0

    with nothing_for_the_collector(HttpRequest, ProxiedRequest) as check:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as the gateway does
            runner.run(bounded())
        check()
