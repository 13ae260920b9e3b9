"""A request on its one hop: another server answers it, as this one would."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from serving.errors import ServingError, Unavailable
from serving.gateway.proxy.node_client import NodeReply
from serving.gateway.proxy.peers.peer_client import PeerClient
from serving.gateway.proxy.peers.peer_protocol import ANSWER_SECONDS
from serving.gateway.proxy.routing_table import RouteTarget
from serving.gateway.proxy.timeouts import TimeoutBucket, deadline_exceeded_error
from serving.http_headers import Headers

_SERVER_TIMING = b"server-timing"
_LEAST_HTTP_STATUS = 100


class ForwardableRequest(Protocol):
    """A request that another server may answer; `ProxiedRequest` is one."""

    target: RouteTarget
    deadline: float
    timeout: float

    @property
    def body(self) -> bytes: ...

    def finish_hop(self, reply: NodeReply) -> None:
        """Another server has answered."""

    def answer_here(self) -> None:
        """The other server does not answer it: this one does."""

    def defer_body_release(self) -> Callable[[], None]:
        """Give up the body; what is returned is called when the connection does not hold it any more."""

    def fail_hop(self, error: ServingError) -> None:
        """Another server has not answered it, and this one may not."""


class Hop:
    """The reply callback of a request at a peer, and its timeout. `on_end` is called with how it ended."""

    __slots__ = ("_bucket", "_client", "_number", "_on_end", "_request", "_started_at", "deadline")

    def __init__(
        self,
        request: ForwardableRequest,
        client: PeerClient,
        bucket: TimeoutBucket,
        on_end: Callable[[str, float], None],
    ) -> None:
        self._request = request
        self._client = client
        self._bucket = bucket
        self._on_end = on_end
        self.deadline = request.deadline
        self._started_at = 0.0
        self._number = -1

    def start(self, head: bytes) -> None:
        request = self._request
        self._bucket.add(self)
        self._started_at = time.monotonic()
        self._number = self._client.send(self, head, request.body, request.timeout)

    def cancel(self) -> None:
        """The client of the request has gone."""
        self._bucket.remove(self)
        self._withdraw()
        self._on_end("cancelled", 0.0)

    # ---- ReplyCallback

    def on_reply(self, reply: NodeReply) -> None:
        self._bucket.remove(self)
        if reply.status < _LEAST_HTTP_STATUS:
            # DECLINED, or what only a later version means by it: no answer.
            self._on_end("declined", 0.0)
            self._request.answer_here()
            return
        headers, seconds = self._split_timing(reply.headers)
        self._on_end("answered", seconds)
        self._request.finish_hop(NodeReply(reply.status, headers, reply.body))

    def on_reply_dropped(self, error: ServingError) -> None:
        self._bucket.remove(self)
        self._on_end("dropped", 0.0)
        self._request.fail_hop(error)

    def on_connection_lost(self) -> None:
        """Answered here if it may be computed twice: the other server may have begun with it."""
        self._bucket.remove(self)
        self._on_end("lost", 0.0)
        if self._request.target.repeatable:
            self._request.answer_here()
            return
        self._request.fail_hop(
            Unavailable(
                f"The server that worked on the request for {self._request.target.name} was lost, and the "
                "code of the model may have run: send it again if that does no harm."
            )
        )

    # ---- Expirable

    def expire(self) -> None:
        self._withdraw()
        self._on_end("expired", 0.0)
        self._request.fail_hop(deadline_exceeded_error(self._request.timeout))

    def _withdraw(self) -> None:
        self._client.cancel(self._number, self._request.defer_body_release())

    def _split_timing(self, headers: Headers) -> tuple[Headers, float]:
        """The headers for the client, and the seconds of the hop besides the other server's own."""
        took = time.monotonic() - self._started_at
        if not headers or headers[-1][0] != ANSWER_SECONDS:
            return headers, took
        kept, value = headers[:-1], headers[-1][1]
        hop = max(0.0, took - float(value))
        if any(name == _SERVER_TIMING for name, _ in kept):
            kept = (*kept, (_SERVER_TIMING, b"hop;dur=%.1f" % (hop * 1000)))
        return kept, hop
