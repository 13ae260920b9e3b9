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
from autoscaler.pools import Node
from serving.config import Limits
from serving.errors import (
    Cancelled,
    Internal,
    InvalidArgument,
    MethodNotAllowed,
    ModelFailed,
    NotFound,
    ResourceExhausted,
    ServingError,
    Unavailable,
)
from serving.gateway.patience import Patience
from serving.gateway.request_log import RequestLog
from serving.gateway.targets import Target, Targets
from serving.gateway.upstream import Answer, ConnectError, ConnectionLostError, Upstream
from serving.wire import Receive, Scope, Send, header, read_body, send_error

logger = logging.getLogger(__name__)

_ATTEMPTS = 3


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
            target = self._find(scope)
            body = await read_body(receive, self._limits.max_body_bytes)
            answer = await self._ask(target, body, Patience(receive, self._timeout(scope)))
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
            raise MethodNotAllowed(f"{scope['method']} is not allowed for :predict; use POST.")
        return self._targets.find(scope["path"])

    async def _ask(self, target: Target, body: bytes, patience: Patience) -> Answer:
        last: Node | None = None
        for _ in range(_ATTEMPTS):
            with _in_words(target):
                async with self._activator.lease(target.spec, len(body), patience.wait) as node:
                    last = node
                    try:
                        return await self._exchange(node, target, body, patience)
                    except ConnectError:
                        logger.warning("%s: node %s cannot be reached", target.name, node.id)
                    except ConnectionLostError:
                        logger.warning("%s: node %s hung up", target.name, node.id)
                        if not target.repeatable:
                            break
            # Its end is noticed a moment after its connections: let the pool tell of it.
            await asyncio.sleep(0.01)
        reason = f" {last.reason}" if last is not None and last.reason else ""
        raise ModelFailed(f"The node died while it worked on the request.{reason}")

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
