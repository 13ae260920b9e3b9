from __future__ import annotations

import asyncio
import threading
from typing import Any

import msgspec
import orjson
import pytest
from starlette.requests import Request

from serving.errors import InvalidArgument
from serving.gateway.api.request_io import read_json, read_resource


class Sent(msgspec.Struct):
    """Notes the thread that it was made in."""

    text: str
    thread: str = ""

    def __post_init__(self) -> None:
        self.thread = threading.current_thread().name


def make_request(*chunks: bytes) -> Request:
    waiting = list(chunks)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": waiting.pop(0), "more_body": bool(waiting)}

    return Request({"type": "http", "method": "POST", "path": "/", "headers": []}, receive)


def read(*chunks: bytes) -> Sent:
    return asyncio.run(read_resource(make_request(*chunks), Sent))


def test_large_bodies_are_decoded_outside_of_the_event_loop() -> None:
    small, large = (orjson.dumps({"text": "x" * size}) for size in (1000, 100_000))

    assert read(small).thread == threading.current_thread().name
    assert read(large[:70_000], large[70_000:]).thread.startswith("large request bodies")


def test_a_large_body_that_is_no_json_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="at line 1 column 100002"):
        read(b"[" + b" " * 100_000)


def test_a_large_body_is_read_once() -> None:
    async def main() -> None:
        request = make_request(orjson.dumps({"text": "x" * 100_000}))
        sent = await read_json(request)
        assert await read_json(request) is sent
        assert (await read_resource(request, Sent)).text == sent["text"]

    asyncio.run(main())
