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
    find_shortage,
)
from serving.gateway.proxy.node_client import ConnectError, NodeClient, NodeReply
from serving.gateway.proxy.route import PredictionRoute
from serving.gateway.proxy.routing_table import RouteTarget, RoutingTable
from serving.gateway.proxy.server_timing import with_server_timing, without_server_timing
from serving.gateway.proxy.timeouts import Deadline, client_gone_error

logger = logging.getLogger(__name__)

# A request is given up when this many nodes died while they computed it, or so many more with it inside: that
# may be chance, but also what it takes to read it or to write its answer. That it hangs is no chance: two are
# enough, for in the second the request had its call to itself.
_DEATHS, _HANGS, _LOSSES = 3, 2, 10
# Seconds within which the pool knows of the end of a node that hung up.
_NOTICED_WITHIN = 2.0


class RetryableRequest(Protocol):
    """One that insists: `losses` are nodes lost with it inside, `deaths` those that maybe died of it."""

    target: RouteTarget
    route: PredictionRoute
    waits: tuple[Lease, ...]
    losses: int
    deaths: int

    @property
    def body(self) -> bytes:
        """What the node is sent."""

    @property
    def is_traced(self) -> bool:
        """Whether it is to be known what it did in the node."""

    def detach_body_release(self) -> Callable[[], None]:
        """What is to be called once its body is free: that may be after its end."""

    def mark_sent(self, lease: Lease, now: float) -> None:
        """It is sent to a node."""

    def mark_returned(self, reply: NodeReply | None, now: float) -> None:
        """It is out of the node."""


class RetryingSender:
    """Gets answers for requests that wait. `upstream` is the channel to a node, None once it is gone."""

    def __init__(
        self,
        routing_table: RoutingTable,
        activator: Activator,
        find_client: Callable[[Node], NodeClient | None],
    ) -> None:
        self._routing_table = routing_table
        self._activator = activator
        self._find_client = find_client

    async def send(
        self, request: RetryableRequest, deadline: Deadline, lost_lease: Lease | None
    ) -> NodeReply:
        """The answer; `lost` is of a node that was lost with the request. Raises what it is refused with."""
        if lost_lease is not None:
            try:
                await _handle_lost_node(request, lost_lease, deadline)
            finally:
                lost_lease.release()
            _check_deadline(deadline, lost_lease)
        while True:
            # Anew for each attempt, with nothing in between: a lease would wake a deleted version.
            request.target = target = self._routing_table.find_target(request.route.target_key)
            with translate_scaling_errors(target):
                async with self._activator.lease(target.spec, len(request.body), deadline) as lease:
                    try:
                        reply = await self._send_once(request, lease, deadline)
                    except ConnectError as error:
                        logger.warning("%s: node %s cannot be reached", target.name, lease.node.id)
                        await _wait_for_node_end(lease.node, deadline)
                        if lease.node.state is NodeState.READY and (short := _find_shortage(error)):
                            raise short from error
                    else:
                        if reply is not None:
                            return reply
                        await _handle_lost_node(request, lease, deadline)
            _check_deadline(deadline, lease)

    async def _send_once(
        self, request: RetryableRequest, lease: Lease, deadline: Deadline
    ) -> NodeReply | None:
        """The node's answer, None if it was lost."""
        node = lease.node
        client = self._find_client(node)
        if client is None:
            raise ConnectError
        if not client.is_connected:
            await client.connect()
        if deadline.gone:
            raise client_gone_error()
        waited_for_start = (
            lease.arrived is not None and node.ready_at is not None and node.ready_at > lease.arrived
        )
        if lease.arrived is not None:
            request.waits = (*request.waits, lease)
        callback = _FutureReply()
        reply: NodeReply | None = None
        request.mark_sent(lease, self._activator.clock())
        number = client.send(
            callback,
            request.body,
            slot=lease.slot,
            timeout=max(deadline.remaining, 0.001),
            never_batch=request.deaths > 0,
            wants_timing=waited_for_start or request.is_traced,
            encoded_call=request.route.encode_call(request.target.name.version),
        )
        try:
            reply = await deadline.wait(callback.reply)
        except BaseException:
            client.cancel(number, request.detach_body_release())
            raise
        finally:
            request.mark_returned(reply, self._activator.clock())
        if reply is None:
            return None
        if waited_for_start:
            return replace(reply, headers=with_server_timing(lease, reply.headers))
        return replace(reply, headers=without_server_timing(reply.headers)) if request.is_traced else reply


class _FutureReply:
    """One that waits for a node; the answer is None if the node is lost."""

    def __init__(self) -> None:
        self.reply: asyncio.Future[NodeReply | None] = asyncio.get_running_loop().create_future()

    def on_reply(self, reply: NodeReply) -> None:
        if not self.reply.done():
            self.reply.set_result(reply)

    def on_reply_dropped(self, error: ServingError) -> None:
        if not self.reply.done():
            self.reply.set_exception(error)

    def on_connection_lost(self) -> None:
        if not self.reply.done():
            self.reply.set_result(None)


async def _handle_lost_node(request: RetryableRequest, lease: Lease, deadline: Deadline) -> None:
    """Find out how a node ended, and whether the request may be sent again."""
    logger.warning("%s: node %s hung up", request.target.name, lease.node.id)
    await _wait_for_node_end(lease.node, deadline)
    _check_retryable(request, lease)


async def _wait_for_node_end(node: Node, deadline: Deadline) -> None:
    """Wait until the pool knows of the end of a node: that comes a moment after its channel closes."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(min(_NOTICED_WITHIN, deadline.remaining)):
            await node.gone.wait()


def _check_retryable(request: RetryableRequest, lease: Lease) -> None:
    """Decide whether a request may be sent again after its node died; raises ModelFailed if not.

    The board tells what the node was doing: a request it had not begun is innocent and unseen. While the
    node lives it may still begin.
    """
    node, mark = lease.node, lease.node.marks[lease.slot]
    request.losses += 1
    request.deaths += mark == Mark.COMPUTING
    is_untouched = mark == Mark.UNTOUCHED and node.state is NodeState.GONE
    is_exhausted = request.deaths >= (_HANGS if node.hung else _DEATHS) or request.losses >= _LOSSES
    if is_exhausted or not (is_untouched or request.target.repeatable):
        raise ModelFailed(f"The node died while it worked on the request. {node.reason}".rstrip())


def _find_shortage(error: ConnectError) -> Unavailable | None:
    """What the server itself is short of, if that is why it cannot reach the node."""
    return None if error.__cause__ is None else find_shortage(error.__cause__)


def _check_deadline(deadline: Deadline, lease: Lease) -> None:
    """Go on only while there is time."""
    if deadline.remaining <= 0:
        raise DeadlineExceeded(f"No node lived long enough to answer. {lease.node.reason}".rstrip())


@contextlib.contextmanager
def translate_scaling_errors(target: RouteTarget) -> Iterator[None]:
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
