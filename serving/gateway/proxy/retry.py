"""Requests that wait for a node, and retries after a node is lost.

A request is retried only if its node died or closed the connection before it replied, never after a timeout.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Iterator
from typing import Protocol

from autoscaler.activator import Activator, Lease
from autoscaler.errors import QueueFullError, RetiredError, StartFailedError, TooLateError
from autoscaler.node_memory import Mark
from autoscaler.pools import Node, NodeState
from serving.errors import (
    DeadlineExceeded,
    ModelFailed,
    NotFound,
    QueueFull,
    Unavailable,
    find_shortage,
)
from serving.gateway.proxy.node_client import AwaitedReply, ConnectError, NodeClient, NodeReply, ReplyCallback
from serving.gateway.proxy.routing_table import RouteTarget
from serving.gateway.proxy.timeouts import Deadline, client_gone_error

logger = logging.getLogger(__name__)

# A request fails for good after _DEATHS nodes crashed (_HANGS hung) while computing it, or _LOSSES were lost
# with it inside: by chance, or because of parsing it or encoding its reply. Two hangs are no chance: in the
# second node the request was not batched with others.
_DEATHS, _HANGS, _LOSSES = 3, 2, 10
# Seconds within which the pool learns how a node ended that closed its connection.
_NODE_END_TIMEOUT = 2.0


class RetryableRequest(Protocol):
    """A request that can be retried.

    `losses` counts the nodes that were lost with the request inside, `deaths` those of them that may have
    died of it. `waits` are the leases that the request waited for.
    """

    target: RouteTarget
    waits: tuple[Lease, ...]
    losses: int
    deaths: int

    @property
    def body(self) -> bytes: ...

    def update_target(self) -> RouteTarget:
        """The version that answers now; raises NotFound."""

    def send(
        self, client: NodeClient, lease: Lease, callback: ReplyCallback, timeout: float, now: float
    ) -> None: ...

    def cancel_in_node(self) -> None: ...

    def count_node_seconds(self, reply: NodeReply | None, now: float) -> None:
        """The request left the node; `reply` is None if it was lost or cancelled."""

    def adapt_timing(self, reply: NodeReply, lease: Lease) -> NodeReply:
        """The reply with what its client gets to see of the node's timing."""


class RetryingSender:
    """Sends requests until a node replies. `find_client` returns None for a node that is gone."""

    def __init__(self, activator: Activator, find_client: Callable[[Node], NodeClient | None]) -> None:
        self._activator = activator
        self._find_client = find_client

    async def send(
        self, request: RetryableRequest, deadline: Deadline, lost_lease: Lease | None
    ) -> NodeReply:
        """The first reply of a node; `lost_lease` is the lease of a node that the request was lost with.

        Raises the ServingError to refuse the request with.
        """
        if lost_lease is not None:
            try:
                await _handle_lost_node(request, lost_lease, deadline)
            finally:
                lost_lease.release()
            _check_deadline(deadline, lost_lease)
        while True:
            # Looked up for each attempt, right before the lease: leasing a deleted version would wake it.
            target = request.update_target()
            with translate_scaling_errors(target):
                async with self._activator.lease(target.spec, len(request.body), deadline) as lease:
                    try:
                        reply = await self._send_once(request, lease, deadline)
                    except ConnectError as error:
                        logger.warning("%s: node %s cannot be reached", target.name, lease.node.id)
                        await _wait_for_node_end(lease.node, deadline)
                        if lease.node.state is NodeState.READY and (
                            shortage := _find_gateway_shortage(error)
                        ):
                            raise shortage from error
                    else:
                        if reply is not None:
                            return reply
                        await _handle_lost_node(request, lease, deadline)
            _check_deadline(deadline, lease)

    async def _send_once(
        self, request: RetryableRequest, lease: Lease, deadline: Deadline
    ) -> NodeReply | None:
        """The node's reply; None if the node was lost."""
        client = self._find_client(lease.node)
        if client is None:
            raise ConnectError
        if not client.is_connected:
            await client.connect()
        if deadline.is_cancelled:
            raise client_gone_error()
        if lease.arrived is not None:
            request.waits = (*request.waits, lease)
        callback = AwaitedReply()
        reply: NodeReply | None = None
        request.send(client, lease, callback, max(deadline.remaining, 0.001), self._activator.clock())
        try:
            reply = await deadline.wait(callback.reply)
        except BaseException as error:
            is_too_late = lease.waited_for_start and self._waited_too_long(request, lease)
            request.cancel_in_node()
            if isinstance(error, DeadlineExceeded) and is_too_late:
                # The model is not slow: its node was ready too late.
                raise TooLateError(
                    f"A node of {request.target.name} was ready only after {lease.seconds_waited:.1f} s.",
                    retry_after=1,
                ) from error
            raise
        finally:
            request.count_node_seconds(reply, self._activator.clock())
        return None if reply is None else request.adapt_timing(reply, lease)

    def _waited_too_long(self, request: RetryableRequest, lease: Lease) -> bool:
        """Whether a request whose time is over spent it in waiting for its node, and not in the model.

        One that the model has begun, and that may be repeated, did so if it waited for longer.
        """
        if lease.read_mark() is Mark.UNTOUCHED:
            return True
        return request.target.repeatable and lease.seconds_waited > self._activator.clock() - lease.granted


async def _handle_lost_node(request: RetryableRequest, lease: Lease, deadline: Deadline) -> None:
    """Wait until it is known how a node ended. Raises ModelFailed if the request must not be sent again."""
    logger.warning("%s: node %s hung up", request.target.name, lease.node.id)
    await _wait_for_node_end(lease.node, deadline)
    _count_loss(request, lease)


async def _wait_for_node_end(node: Node, deadline: Deadline) -> None:
    """Wait until the pool reports the end of a node, which is a moment after its connection closes."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(min(_NODE_END_TIMEOUT, deadline.remaining)):
            await node.gone.wait()


def _count_loss(request: RetryableRequest, lease: Lease) -> None:
    """Raises ModelFailed unless the request may be sent again after its node died.

    The node's mark of the request's slot says how far it got: if it is untouched, no user code has seen the
    request. While the node lives, it may still begin with it.
    """
    node, mark = lease.node, lease.read_mark()
    request.losses += 1
    request.deaths += mark == Mark.COMPUTING
    is_untouched = mark == Mark.UNTOUCHED and node.state is NodeState.GONE
    is_exhausted = request.deaths >= (_HANGS if node.hung else _DEATHS) or request.losses >= _LOSSES
    if is_exhausted or not (is_untouched or request.target.repeatable):
        raise ModelFailed(f"The node died while it worked on the request. {node.reason}".rstrip())


def _find_gateway_shortage(error: ConnectError) -> Unavailable | None:
    """The error to respond with if the gateway lacks memory, descriptors or the like to connect."""
    return None if error.__cause__ is None else find_shortage(error.__cause__)


def _check_deadline(deadline: Deadline, lease: Lease) -> None:
    if deadline.remaining <= 0:
        raise DeadlineExceeded(
            f"Every node that received the request ended before it replied. {lease.node.reason}".rstrip()
        )


@contextlib.contextmanager
def translate_scaling_errors(target: RouteTarget) -> Iterator[None]:
    """Convert the autoscaler's errors to those that clients get."""
    try:
        yield
    except QueueFullError as error:
        raise QueueFull(
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
