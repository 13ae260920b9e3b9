"""`:predict` on the gateway, the straight line: name -> leased node -> bytes through.

The body is held until the node's answer begins and is never parsed. It is sent again only when the node
died or hung up before any byte of an answer, never after a time-out.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from autoscaler.activator import Activator
from autoscaler.errors import QueueFullError, RetiredError, StartFailedError
from autoscaler.pools import Node, NodeState
from serving.config import Limits
from serving.errors import (
    Cancelled,
    Internal,
    InvalidArgument,
    ModelFailed,
    NotFound,
    ResourceExhausted,
    ServingError,
    Unavailable,
    wrong_method,
)
from serving.gateway.patience import Patience
from serving.gateway.request_log import RequestLog
from serving.gateway.targets import Target, Targets
from serving.gateway.upstream import Answer, ConnectError, ConnectionLostError, Upstream
from serving.wire import Receive, Scope, Send, header, read_body, send_error

logger = logging.getLogger(__name__)

_ATTEMPTS = 3
# How often, and how many seconds apart, to look whether the pool has noticed the end of a node.
_LOOKS = 200
_BETWEEN_LOOKS = 0.005


class Forwarder:
    """Answers prediction requests with the nodes of their version."""

    def __init__(
        self, targets: Targets, activator: Activator, request_log: RequestLog, limits: Limits
    ) -> None:
        self._targets = targets
        self._activator = activator
        self._log = request_log
        self._limits = limits
        self._upstreams: dict[str, Upstream] = {}

    async def forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        start = time.time()
        try:
            self._find(scope)  # so that no body is read for nothing
            body = await read_body(receive, self._limits.max_body_bytes)
            patience = Patience(receive, self._timeout(scope))
            target, answer = await self._ask(scope["path"], body, patience)
        except Cancelled:
            return
        except ServingError as error:
            await send_error(send, error)
            return
        except Exception:
            logger.exception("forwarding failed")
            await send_error(send, Internal("Internal error encountered."))
            return
        await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
        await send({"type": "http.response.body", "body": answer.body})
        if target.logging is not None or target.access_log:
            self._log.offer(target, start, body, answer)

    def node_gone(self, node: Node) -> None:
        """Close what was open to a node that is gone."""
        upstream = self._upstreams.pop(node.id, None)
        if upstream is not None:
            upstream.close()

    def _find(self, scope: Scope) -> Target:
        if scope["method"] != "POST":
            raise wrong_method(scope["method"], scope["path"], "POST")
        return self._targets.find(scope["path"])

    async def _ask(self, path: str, body: bytes, patience: Patience) -> tuple[Target, Answer]:
        """The answer, and who gave it."""
        left = _ATTEMPTS
        while True:
            # Anew for each attempt, with nothing in between: a lease would wake a deleted version.
            target = self._targets.find(path)
            with _in_words(target):
                async with self._activator.lease(target.spec, len(body), patience.wait) as node:
                    try:
                        return target, await self._exchange(node, target, body, patience)
                    except ConnectError:
                        logger.warning("%s: node %s cannot be reached", target.name, node.id)
                        left -= 1
                    except ConnectionLostError:
                        logger.warning("%s: node %s hung up", target.name, node.id)
                        left = left - 1 if target.repeatable else 0
            if left == 0:
                await _noticed(node, NodeState.GONE)
                raise ModelFailed(f"The node died while it worked on the request. {node.reason}".rstrip())
            await _noticed(node, NodeState.DRAINING, NodeState.GONE)

    async def _exchange(self, node: Node, target: Target, body: bytes, patience: Patience) -> Answer:
        upstream = self._upstreams.get(node.id)
        if upstream is None:
            upstream = self._upstreams[node.id] = Upstream(node.address)
        head = b"%bx-request-timeout: %.3f\r\ncontent-length: %d\r\n\r\n" % (
            target.head,
            max(patience.remaining, 0.001),
            len(body),
        )
        return await upstream.exchange(head, body, patience.wait)

    def _timeout(self, scope: Scope) -> float:
        given = header(scope, b"x-request-timeout")
        if given is None:
            return self._limits.request_timeout
        try:
            timeout = float(given)
        except ValueError:
            timeout = -1
        if not timeout > 0:
            raise InvalidArgument("The header X-Request-Timeout must be a number of seconds over 0.")
        return min(timeout, self._limits.request_timeout)


async def _noticed(node: Node, *states: NodeState) -> None:
    """Wait until the pool has told of the end of a node: that comes a moment after its connections close."""
    for _ in range(_LOOKS):
        if node.state in states:
            return
        await asyncio.sleep(_BETWEEN_LOOKS)


@contextmanager
def _in_words(target: Target) -> Iterator[None]:
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
            f"No node of {target.name} could be started. {error.reason}", retry_after=5
        ) from error
    except RetiredError as error:
        raise NotFound(f"The version {target.name} was deleted.") from error
