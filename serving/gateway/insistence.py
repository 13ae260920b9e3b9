"""Requests that cannot have their answer at once: they wait for a node, and go to another if one is lost.

A request is sent again only when the node died or hung up before its answer, never after a time-out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol

from autoscaler.activator import Activator, Lease
from autoscaler.errors import QueueFullError, RetiredError, StartFailedError, TooLateError
from autoscaler.pools import Mark, Node, NodeState
from serving.errors import (
    DeadlineExceeded,
    ModelFailed,
    NotFound,
    ResourceExhausted,
    ServingError,
    Unavailable,
)
from serving.gateway.patience import Patience, left
from serving.gateway.server_timing import with_server_timing, without_server_timing
from serving.gateway.targets import Target, Targets
from serving.gateway.upstream import Answer, ConnectError, Upstream
from serving.gateway.ways import Way
from serving.shortage import find_shortage

logger = logging.getLogger(__name__)

# A request is given up when this many nodes died while they computed it, or so many more with it inside: that
# may be chance, but also what it takes to read it or to write its answer. That it hangs is no chance: two are
# enough, for in the second the request had its call to itself.
_DEATHS, _HANGS, _LOSSES = 3, 2, 10
# Seconds within which the pool knows of the end of a node that hung up.
_NOTICED_WITHIN = 2.0


class Request(Protocol):
    """One that insists: `losses` are nodes lost with it inside, `deaths` those that maybe died of it."""

    target: Target
    way: Way
    waits: tuple[Lease, ...]
    losses: int
    deaths: int

    @property
    def body(self) -> bytes:
        """What the node is sent."""

    @property
    def traced(self) -> bool:
        """Whether it is to be known what it did in the node."""

    def hand_over_body(self) -> Callable[[], None]:
        """What is to be called once its body is free: that may be after its end."""

    def enters(self, lease: Lease, now: float) -> None:
        """It is sent to a node."""

    def leaves(self, answer: Answer | None, now: float) -> None:
        """It is out of the node."""


class Insistence:
    """Gets answers for requests that wait. `upstream` is the channel to a node, None once it is gone."""

    def __init__(
        self, targets: Targets, activator: Activator, upstream: Callable[[Node], Upstream | None]
    ) -> None:
        self._targets = targets
        self._activator = activator
        self._upstream = upstream

    async def ask(self, request: Request, patience: Patience, lost: Lease | None) -> Answer:
        """The answer; `lost` is of a node that was lost with the request. Raises what it is refused with."""
        if lost is not None:
            try:
                await _lose(request, lost, patience)
            finally:
                lost.release()
            _check(patience, lost)
        while True:
            # Anew for each attempt, with nothing in between: a lease would wake a deleted version.
            request.target = target = self._targets.find(request.way.goal)
            with in_words(target):
                async with self._activator.lease(target.spec, len(request.body), patience) as lease:
                    try:
                        answer = await self._send(request, lease, patience)
                    except ConnectError as error:
                        logger.warning("%s: node %s cannot be reached", target.name, lease.node.id)
                        await _noticed(lease.node, patience)
                        if lease.node.state is NodeState.READY and (short := _shortage_behind(error)):
                            raise short from error
                    else:
                        if answer is not None:
                            return answer
                        await _lose(request, lease, patience)
            _check(patience, lease)

    async def _send(self, request: Request, lease: Lease, patience: Patience) -> Answer | None:
        """The node's answer, None if it was lost."""
        node = lease.node
        upstream = self._upstream(node)
        if upstream is None:
            raise ConnectError
        if not upstream.connected:
            await upstream.connect()
        if patience.gone:
            raise left()
        held = lease.arrived is not None and node.ready_at is not None and node.ready_at > lease.arrived
        if lease.arrived is not None:
            request.waits = (*request.waits, lease)
        asking = _Asking()
        answer: Answer | None = None
        request.enters(lease, self._activator.clock())
        number = upstream.send(
            asking,
            request.body,
            slot=lease.slot,
            timeout=max(patience.remaining, 0.001),
            never_batch=request.deaths > 0,
            timing=held or request.traced,
            about=request.way.about(request.target.name.version),
        )
        try:
            answer = await patience.wait(asking.answer)
        except BaseException:
            upstream.cancel(number, request.hand_over_body())
            raise
        finally:
            request.leaves(answer, self._activator.clock())
        if answer is None:
            return None
        if held:
            return replace(answer, headers=with_server_timing(lease, answer.headers))
        return replace(answer, headers=without_server_timing(answer.headers)) if request.traced else answer


class _Asking:
    """One that waits for a node; the answer is None if the node is lost."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()

    def answered(self, answer: Answer) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)

    def refused(self, error: ServingError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)

    def lost(self) -> None:
        if not self.answer.done():
            self.answer.set_result(None)


async def _lose(request: Request, lease: Lease, patience: Patience) -> None:
    """Find out how a node ended, and whether the request may be sent again."""
    logger.warning("%s: node %s hung up", request.target.name, lease.node.id)
    await _noticed(lease.node, patience)
    _judge(request, lease)


async def _noticed(node: Node, patience: Patience) -> None:
    """Wait until the pool knows of the end of a node: that comes a moment after its channel closes."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(min(_NOTICED_WITHIN, patience.remaining)):
            await node.gone.wait()


def _judge(request: Request, lease: Lease) -> None:
    """Decide whether a request may be sent again after its node died; raises ModelFailed if not.

    The board tells what the node was doing: a request it had not begun is innocent and unseen. While the
    node lives it may still begin.
    """
    node, mark = lease.node, lease.node.marks[lease.slot]
    request.losses += 1
    request.deaths += mark == Mark.COMPUTING
    unseen = mark == Mark.UNTOUCHED and node.state is NodeState.GONE
    hopeless = request.deaths >= (_HANGS if node.hung else _DEATHS) or request.losses >= _LOSSES
    if hopeless or not (unseen or request.target.repeatable):
        raise ModelFailed(f"The node died while it worked on the request. {node.reason}".rstrip())


def _shortage_behind(error: ConnectError) -> Unavailable | None:
    """What the server itself is short of, if that is why it cannot reach the node."""
    return None if error.__cause__ is None else find_shortage(error.__cause__)


def _check(patience: Patience, lease: Lease) -> None:
    """Go on only while there is time."""
    if patience.remaining <= 0:
        raise DeadlineExceeded(f"No node lived long enough to answer. {lease.node.reason}".rstrip())


@contextlib.contextmanager
def in_words(target: Target) -> Iterator[None]:
    """The autoscaler's errors as the client is told of them."""
    try:
        yield
    except QueueFullError as error:
        raise ResourceExhausted(
            f"Too many requests wait for {target.name} (setting {error.setting} = {error.limit}).",
            retry_after=1,
        ) from error
    except StartFailedError as error:
        raise Unavailable(
            f"No node of {target.name} could be started. {error.reason}",
            retry_after=math.ceil(error.retry_after),
        ) from error
    except TooLateError as error:
        raise Unavailable(
            f"{error.reason} The request could not wait that long (X-Request-Timeout, setting "
            "request_timeout).",
            retry_after=math.ceil(error.retry_after),
        ) from error
    except RetiredError as error:
        raise NotFound(f"The version {target.name} was deleted.") from error
