"""Bodies and answers of an application that is nothing but ASGI."""

from __future__ import annotations

import orjson

from serving.errors import Cancelled, ServingError, http_status, to_wire
from serving.wire import JSON, Headers, Receive, Scope, Send, check_length, error_headers, too_large


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The whole body. Raises BodyTooLarge past `limit` bytes and Cancelled when the client goes away."""
    check_length(scope, limit)
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Cancelled("The client closed the connection.")
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > limit:
            raise too_large(limit)
    return body


async def send_json(send: Send, status: int, body: bytes, headers: Headers = ()) -> None:
    """A complete JSON answer."""
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [JSON, length, *headers]})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: ServingError) -> None:
    """An error in Google's structured form."""
    await send_json(send, http_status(error), orjson.dumps(to_wire(error)), error_headers(error))
