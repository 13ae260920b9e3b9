"""Bodies and answers of an application that is nothing but ASGI."""

from __future__ import annotations

import orjson

from serving.errors import Cancelled, ServingError, error_to_json, http_status
from serving.http_headers import (
    JSON_CONTENT_TYPE,
    Headers,
    Receive,
    Scope,
    Send,
    body_too_large,
    check_body_length,
    error_headers,
)


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The whole body. Raises BodyTooLarge past `limit` bytes and Cancelled when the client goes away."""
    check_body_length(scope, limit)
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Cancelled("The client closed the connection.")
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > limit:
            raise body_too_large(limit)
    return body


async def send_json(send: Send, status: int, body: bytes, headers: Headers = ()) -> None:
    """A complete JSON answer."""
    length = (b"content-length", b"%d" % len(body))
    await send(
        {"type": "http.response.start", "status": status, "headers": [JSON_CONTENT_TYPE, length, *headers]}
    )
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: ServingError) -> None:
    """An error in Google's structured form."""
    await send_json(send, http_status(error), orjson.dumps(error_to_json(error)), error_headers(error))
