"""Lends ready nodes to requests, and holds requests while there is none."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from autoscaler.errors import QueueFullError, RetiredError, StartFailedError
from autoscaler.pools import Node, NodePool, NodeSpec, NodeState

logger = logging.getLogger(__name__)

Wait = Callable[[asyncio.Future[Node]], Awaitable[Node]]


@dataclass(slots=True, eq=False)
class _Waiter:
    granted: asyncio.Future[Node]
    size: int


@dataclass(slots=True, eq=False)
class _Version:
    """What the activator knows of one version. `starting` holds node ids, and wakes under way."""

    spec: NodeSpec
    ready: list[Node] = field(default_factory=list)
    starting: set[object] = field(default_factory=set)
    waiting: deque[_Waiter] = field(default_factory=deque)


class Lease:
    """`async with activator.lease(...) as node`: the node is counted as busy inside the block."""

    __slots__ = ("_activator", "_node", "_size", "_spec", "_wait")

    def __init__(self, activator: Activator, spec: NodeSpec, size: int, wait: Wait) -> None:
        self._activator = activator
        self._spec = spec
        self._size = size
        self._wait = wait

    async def __aenter__(self) -> Node:
        node = self._activator.try_acquire(self._spec.key)
        if node is None:
            node = await self._activator.acquire(self._spec, self._size, self._wait)
        self._node = node
        return node

    async def __aexit__(self, *details: object) -> None:
        self._activator.release(self._node)


class Activator:
    """One per gateway. Waiting requests are bounded per version and, by bytes, in all."""

    def __init__(self, *, queue_requests: int, queue_bytes: int) -> None:
        self._queue_requests = queue_requests
        self._queue_bytes = queue_bytes
        self._waiting_bytes = 0
        self._versions: dict[str, _Version] = {}
        self._pool: NodePool | None = None
        self._wakes: set[asyncio.Task[None]] = set()

    def connect(self, pool: NodePool) -> None:
        """Use this pool; its listener must be `self.node_changed`."""
        self._pool = pool

    def lease(self, spec: NodeSpec, size: int, wait: Wait) -> Lease:
        """A node for one request of `size` bytes, woken if need be.

        `wait` awaits the future it is given and may give up by raising. Entering the block raises
        QueueFullError, StartFailedError or RetiredError.
        """
        return Lease(self, spec, size, wait)

    def try_acquire(self, key: str) -> Node | None:
        """The least loaded ready node that has room, if there is one and nobody waits for it."""
        version = self._versions.get(key)
        if version is None or not version.ready or version.waiting:
            return None
        node = min(version.ready, key=_load) if len(version.ready) > 1 else version.ready[0]
        if node.in_flight >= version.spec.concurrency:
            return None
        node.in_flight += 1
        return node

    async def acquire(self, spec: NodeSpec, size: int, wait: Wait) -> Node:
        """Wait for a node; see `lease`."""
        version = self._versions.setdefault(spec.key, _Version(spec))
        version.spec = spec
        self._refuse_overflow(version, size)
        waiter = _Waiter(asyncio.get_running_loop().create_future(), size)
        version.waiting.append(waiter)
        self._waiting_bytes += size
        try:
            if not version.ready and not version.starting:
                self._wake(version)
            return await wait(waiter.granted)
        except BaseException:
            self._give_up(spec.key, waiter)
            raise

    def release(self, node: Node) -> None:
        """Give a node back."""
        node.in_flight -= 1
        version = self._versions.get(node.key)
        if version is not None and version.waiting:
            self._grant(version)

    def node_changed(self, node: Node) -> None:
        """The pool's listener."""
        version = self._versions.get(node.key)
        if version is None:  # retired meanwhile
            return
        match node.state:
            case NodeState.STARTING:
                version.starting.add(node.id)
            case NodeState.READY:
                version.starting.discard(node.id)
                version.ready.append(node)
                self._grant(version)
            case NodeState.DRAINING | NodeState.GONE:
                version.starting.discard(node.id)
                if node in version.ready:
                    version.ready.remove(node)
                if node.state is NodeState.GONE:
                    self._after_loss(version, node)

    def retire(self, key: str) -> None:
        """Forget a version; whoever waits for it is told so."""
        version = self._versions.pop(key, None)
        if version is not None:
            self._fail(version, RetiredError("the version was deleted"))

    def _after_loss(self, version: _Version, node: Node) -> None:
        """A node is gone: those who wait get another, unless it never came to be ready."""
        if not version.waiting or version.ready or version.starting:
            return
        if node.report:
            self._wake(version)
        else:
            self._fail(version, StartFailedError(node.reason))

    def _wake(self, version: _Version) -> None:
        pool, spec = self._pool, version.spec
        if pool is None:
            raise StartFailedError("the server is starting or stopping")
        wake = object()  # stands for the node until the pool has told of it
        version.starting.add(wake)

        async def start() -> None:
            try:
                if self._versions.get(spec.key) is version:  # not retired meanwhile
                    await pool.scale(spec, 1)
            except OSError as error:
                logger.exception("%s: cannot start a node", spec.title)
                self._fail(version, StartFailedError(f"Cannot start a process: {error}"))
            finally:
                version.starting.discard(wake)

        task = asyncio.create_task(start())
        self._wakes.add(task)
        task.add_done_callback(self._wakes.discard)

    def _refuse_overflow(self, version: _Version, size: int) -> None:
        if len(version.waiting) >= self._queue_requests:
            raise QueueFullError("queue_requests", self._queue_requests)
        if self._waiting_bytes and self._waiting_bytes + size > self._queue_bytes:
            raise QueueFullError("queue_bytes", self._queue_bytes)

    def _grant(self, version: _Version) -> None:
        """Hand free places in ready nodes to those who wait, the oldest first."""
        while version.waiting and version.ready:
            node = min(version.ready, key=_load)
            if node.in_flight >= version.spec.concurrency:
                return
            waiter = version.waiting.popleft()
            self._waiting_bytes -= waiter.size
            if not waiter.granted.done():
                node.in_flight += 1
                waiter.granted.set_result(node)

    def _give_up(self, key: str, waiter: _Waiter) -> None:
        """A request stopped waiting: take it out, or pass on the node it was just given."""
        version = self._versions.get(key)
        if version is not None and waiter in version.waiting:
            version.waiting.remove(waiter)
            self._waiting_bytes -= waiter.size
        elif waiter.granted.done() and not waiter.granted.cancelled() and not waiter.granted.exception():
            self.release(waiter.granted.result())

    def _fail(self, version: _Version, error: Exception) -> None:
        while version.waiting:
            waiter = version.waiting.popleft()
            self._waiting_bytes -= waiter.size
            if not waiter.granted.done():
                waiter.granted.set_exception(error)


def _load(node: Node) -> int:
    return node.in_flight
