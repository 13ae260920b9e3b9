"""Requests without a connection: what is answered is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, cast

import orjson

from serving.http_headers import Receive, Scope, Send, find_header
from serving.transport.request import HttpPredictionHandler, HttpRequest
from serving.transport.request_head import RequestHead

App = Callable[[Any, Any, Any], Awaitable[None]]


@dataclass
class Answered:
    """What the client got; nothing yet, if the status is 0."""

    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""

    @property
    def message(self) -> str:
        text: str = orjson.loads(self.body)["error"]["message"]
        return text


class Peer:
    """A connection that keeps what it is to send."""

    def __init__(self) -> None:
        self.transport = cast(asyncio.Transport, self)
        self.answered: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()

    def write(self, data: bytes) -> None:
        head, _, body = data.partition(b"\r\n\r\n")
        line, *lines = head.split(b"\r\n")
        headers = dict(line.split(b": ", 1) for line in lines)
        self.answered.set_result(Answered(int(line.split()[1]), headers, body))

    def writelines(self, parts: Iterable[bytes]) -> None:
        self.write(b"".join(parts))

    def on_response_complete(self) -> None:
        pass


def through(app: App, handler: HttpPredictionHandler) -> App:
    """The ASGI application with its predictions, for clients that know nothing else."""

    async def both(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not handler.can_handle(scope["method"], scope["path"]):
            await app(scope, receive, send)
            return
        peer = Peer()
        length = find_header(scope, b"content-length")
        head = RequestHead(scope["method"], scope["path"], scope["headers"], length=int(length or 0))
        http_request = HttpRequest(head, peer, client=scope["client"])
        handler.on_request_head(http_request)
        more = True
        while more and not http_request.response_complete:
            message = await receive()
            http_request.body += message.get("body", b"")
            more = message.get("more_body", False)
        if not http_request.response_complete:
            handler.on_request_complete(http_request)
        answered = await peer.answered
        headers = list(answered.headers.items())
        await send({"type": "http.response.start", "status": answered.status, "headers": headers})
        await send({"type": "http.response.body", "body": answered.body})

    return both
