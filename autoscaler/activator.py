"""Leases ready nodes to requests, and queues requests while there is none."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from autoscaler.errors import NodeError, QueueFullError, RetiredError, TooLateError
from autoscaler.moving_average import ConcurrencyMeter
from autoscaler.node_memory import Mark
from autoscaler.pools import Node, NodeSpec, NodeState

# Seconds by which timers may fire early: the event loop's clock has milliseconds.
_TIMER_TOLERANCE = 0.005


class WaitDeadline(Protocol):
    """The time that a request has left to wait for a node."""

    @property
    def remaining(self) -> float:
        """Seconds left, negative once it has passed."""

    async def wait(self, granted: asyncio.Future[Node]) -> Node:
        """The result of the future; raises once the deadline has passed."""


@dataclass(frozen=True, slots=True)
class StartEstimate:
    """The start time that a request without a ready node can expect.

    `seconds` until a node is ready, None when unknown; `reason` why there is none, in words.
    """

    seconds: float | None = None
    reason: str = ""


class Waker(Protocol):
    """Starts nodes for waiting requests: the autoscaler."""

    def wake(self, spec: NodeSpec) -> StartEstimate:
        """A request waits for a node of this version, and none is ready. Must not block.

        The request is in the version's meter already. Raises StartFailedError while its nodes keep failing
        and the backoff lasts.
        """

    def on_refused(self, key: str, error: NodeError) -> None:
        """Called when a request was not served."""


@dataclass(slots=True, eq=False)
class _Waiter:
    """A waiting request; `slot` is set together with the node in `granted`."""

    granted: asyncio.Future[Node]
    size: int
    slot: int = -1


@dataclass(slots=True, eq=False)
class _VersionQueue:
    """The ready nodes and waiting requests of one version; `meter` counts running and waiting requests."""

    concurrency: int
    meter: ConcurrencyMeter
    ready: list[Node] = field(default_factory=list)
    waiting: deque[_Waiter] = field(default_factory=deque)


class Lease:
    """A request holds a slot of `node` until `release`.

    `slot` is the index of its mark in the node's shared memory; `arrived` when it began to wait, None when it
    did not wait, and `granted` when it got the node, both on the activator's clock.
    """

    __slots__ = ("_activator", "_version", "arrived", "granted", "node", "slot")

    def __init__(
        self,
        activator: Activator,
        version: _VersionQueue,
        node: Node,
        slot: int,
        *,
        granted: float,
        arrived: float | None = None,
    ) -> None:
        self._activator = activator
        self._version = version
        self.node = node
        self.slot = slot
        self.granted = granted
        self.arrived = arrived

    @property
    def waited_for_start(self) -> bool:
        """Whether the node became ready while the request waited."""
        ready_at = self.node.ready_at
        return self.arrived is not None and ready_at is not None and ready_at > self.arrived

    @property
    def seconds_waited(self) -> float:
        return 0.0 if self.arrived is None else self.granted - self.arrived

    def read_mark(self) -> Mark:
        """How far the node got with the request; after its end too."""
        return self.node.read_mark(self.slot)

    def release(self) -> float:
        """Free the slot; returns the time on the activator's clock."""
        version, now = self._version, self._activator.clock()
        self.node.release_slot(self.slot)
        version.meter.change(-1, now)
        if version.waiting:
            self._activator.grant_slots(version)
        return now


class _LeaseContext:
    """The context manager that `Activator.lease` returns."""

    __slots__ = ("_activator", "_deadline", "_lease", "_size", "_spec")

    _lease: Lease

    def __init__(self, activator: Activator, spec: NodeSpec, size: int, deadline: WaitDeadline) -> None:
        self._activator = activator
        self._spec = spec
        self._size = size
        self._deadline = deadline

    async def __aenter__(self) -> Lease:
        activator = self._activator
        lease = activator.try_lease(self._spec)
        if lease is None:
            lease = await activator.wait_for_lease(self._spec, self._size, self._deadline)
        self._lease = lease
        return lease

    async def __aexit__(self, *details: object) -> None:
        self._lease.release()


class Activator:
    """Leases ready nodes to requests; one per gateway. Waiting requests are bounded, see `QueueFullError`.

    `clock` is the one that nodes' `asked_at` and `ready_at` are on.
    """

    def __init__(
        self, *, queue_requests: int, queue_bytes: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.clock = clock
        self._queue_requests = queue_requests
        self._queue_bytes = queue_bytes
        self._waiting_bytes = 0
        self._versions: dict[str, _VersionQueue] = {}
        self._waker: Waker | None = None

    def connect_waker(self, waker: Waker) -> None:
        self._waker = waker

    def try_lease(self, spec: NodeSpec) -> Lease | None:
        """A node for one request, if one has a free slot and no other request waits. Never waits."""
        version = self._versions.get(spec.key)
        if version is None or version.waiting:
            return None
        node = _pick_node(version)
        if node is None:
            return None
        now = self.clock()
        version.meter.change(1, now)
        return Lease(self, version, node, node.acquire_slot(), granted=now)

    def lease(self, spec: NodeSpec, size: int, deadline: WaitDeadline) -> AbstractAsyncContextManager[Lease]:
        """`async with activator.lease(...)`: a node for a request of `size` bytes, started if need be.

        Entering the block raises QueueFullError, StartFailedError, TooLateError, RetiredError, or the error
        of `deadline` once that has passed.
        """
        return _LeaseContext(self, spec, size, deadline)

    def meter_of(self, spec: NodeSpec) -> ConcurrencyMeter:
        return self.queue_of(spec).meter

    def count_waiting(self, key: str) -> int:
        version = self._versions.get(key)
        return len(version.waiting) if version else 0

    def on_node_changed(self, node: Node) -> None:
        """Implements `NodeListener`."""
        version = self._versions.get(node.key)
        if version is None:  # it was retired
            return
        if node.state is NodeState.READY:
            version.ready.append(node)
            self.grant_slots(version)
        elif node in version.ready:
            version.ready.remove(node)

    def fail_waiting(self, key: str, error: NodeError) -> None:
        """Raise `error` in all requests that wait for a version."""
        version = self._versions.get(key)
        while version is not None and version.waiting:
            waiter = self._pop_waiter(version)
            if not waiter.granted.done():
                waiter.granted.set_exception(error)

    def retire_version(self, key: str) -> None:
        """Forget a version; its waiting requests get a RetiredError."""
        self.fail_waiting(key, RetiredError("the version was deleted"))
        self._versions.pop(key, None)

    # ---- for leases

    def queue_of(self, spec: NodeSpec) -> _VersionQueue:
        version = self._versions.get(spec.key)
        if version is None:
            version = self._versions[spec.key] = _VersionQueue(
                spec.concurrency, ConcurrencyMeter(self.clock())
            )
        return version

    async def wait_for_lease(self, spec: NodeSpec, size: int, deadline: WaitDeadline) -> Lease:
        version, arrived = self.queue_of(spec), self.clock()
        version.meter.change(1, arrived)
        try:
            node, slot = await self._wait_for_node(version, spec, size, deadline)
        except BaseException:
            version.meter.change(-1, self.clock())
            raise
        return Lease(self, version, node, slot, granted=self.clock(), arrived=arrived)

    async def _wait_for_node(
        self, version: _VersionQueue, spec: NodeSpec, size: int, deadline: WaitDeadline
    ) -> tuple[Node, int]:
        try:
            self._check_queue_limits(version, size)
            if not version.ready:
                self._wake_version(spec, deadline)
            return await self._wait_in_queue(version, spec, size, deadline)
        except NodeError as error:
            if self._waker is not None:
                self._waker.on_refused(spec.key, error)
            raise

    async def _wait_in_queue(
        self, version: _VersionQueue, spec: NodeSpec, size: int, deadline: WaitDeadline
    ) -> tuple[Node, int]:
        waiter, arrived = _Waiter(asyncio.get_running_loop().create_future(), size), self.clock()
        version.waiting.append(waiter)
        self._waiting_bytes += size
        try:
            return await deadline.wait(waiter.granted), waiter.slot
        except (NodeError, asyncio.CancelledError):
            self._leave_queue(version, waiter)
            raise
        except BaseException as error:
            self._leave_queue(version, waiter)
            if deadline.remaining > _TIMER_TOLERANCE or self._waker is None:
                raise
            # The model is not slow if no node of it was ready in time.
            if not version.ready:
                estimate = self._waker.wake(spec)
                raise TooLateError(estimate.reason, estimate.seconds or 1.0) from error
            first = min(node.ready_at or 0.0 for node in version.ready)
            if first > arrived:
                raise TooLateError(
                    f"A node of {spec.title} was ready only after {first - arrived:.1f} s, with other "
                    "requests before this one.",
                    retry_after=1,
                ) from error
            raise

    def grant_slots(self, version: _VersionQueue) -> None:
        """Give free slots of ready nodes to waiting requests, the oldest first."""
        while version.waiting and (node := _pick_node(version)) is not None:
            waiter = self._pop_waiter(version)
            if not waiter.granted.done():
                waiter.slot = node.acquire_slot()
                waiter.granted.set_result(node)

    def _wake_version(self, spec: NodeSpec, deadline: WaitDeadline) -> None:
        """Have a node started; raises TooLateError if that would take longer than the request can wait."""
        if self._waker is None:
            raise TooLateError("The server is starting or stopping.", retry_after=1)
        estimate = self._waker.wake(spec)
        if estimate.seconds is not None and estimate.seconds > deadline.remaining:
            raise TooLateError(estimate.reason, retry_after=estimate.seconds)

    def _check_queue_limits(self, version: _VersionQueue, size: int) -> None:
        if len(version.waiting) >= self._queue_requests:
            raise QueueFullError("queue_requests", self._queue_requests)
        if self._waiting_bytes and self._waiting_bytes + size > self._queue_bytes:
            raise QueueFullError("queue_bytes", self._queue_bytes)

    def _pop_waiter(self, version: _VersionQueue) -> _Waiter:
        waiter = version.waiting.popleft()
        self._waiting_bytes -= waiter.size
        return waiter

    def _leave_queue(self, version: _VersionQueue, waiter: _Waiter) -> None:
        """A request stopped waiting: remove it, or pass on the slot it was just given."""
        if waiter in version.waiting:
            version.waiting.remove(waiter)
            self._waiting_bytes -= waiter.size
        elif waiter.granted.done() and not waiter.granted.cancelled() and not waiter.granted.exception():
            waiter.granted.result().release_slot(waiter.slot)
            self.grant_slots(version)


def _pick_node(version: _VersionQueue) -> Node | None:
    """The ready node with the fewest requests, if it has a free slot."""
    ready = version.ready
    if not ready:
        return None
    node = ready[0] if len(ready) == 1 else min(ready, key=_requests_in_flight)
    return node if node.in_flight < version.concurrency else None


def _requests_in_flight(node: Node) -> int:
    return node.in_flight
