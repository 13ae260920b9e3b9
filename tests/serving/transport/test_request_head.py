"""Heads that come again: they are read once, and mean what they mean when they are read."""

from __future__ import annotations

import asyncio
import itertools
from typing import cast

import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from serving.config import ServerSettings
from serving.errors import ServingError
from serving.transport.connection_limits import ConnectionLimiter
from serving.transport.http_connection import HttpConnection
from serving.transport.request import PREDICT_SUFFIX, HttpRequest
from serving.transport.request_head import RequestHead, RequestHeadCache


class Echo:
    """Says what it was asked: path, headers and body, at once."""

    max_body_bytes = 1000

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[tuple[bytes, bytes]], bytes]] = []

    def can_handle(self, method: str, path: str) -> bool:
        return path.endswith(PREDICT_SUFFIX)

    def on_request_error(self, exchange: HttpRequest, error: ServingError) -> None:
        exchange.respond_error(error)

    def on_request_head(self, exchange: HttpRequest) -> None:
        pass

    def on_request_complete(self, exchange: HttpRequest) -> None:
        self.asked.append((exchange.head.path, list(exchange.head.headers), exchange.body))
        exchange.respond(200, b"{}")


class Wire:
    """A transport that only counts."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    write_eof = close

    def can_write_eof(self) -> bool:
        return True

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default

    def get_write_buffer_size(self) -> int:
        return 0


async def no_app(scope: object, receive: object, send: object) -> None:
    """Nothing else is asked."""


CONFIG = uvicorn.Config(no_app, http="httptools", ws="none", log_config=None, interface="asgi3")


async def told(gate: ConnectionLimiter, pieces: list[bytes]) -> Echo:
    """What a handler was asked through one connection."""
    echo, wire = Echo(), Wire()
    connection = HttpConnection(gate, echo, config=CONFIG, server_state=ServerState(), app_state={})
    connection.connection_made(cast(asyncio.Transport, wire))
    for piece in pieces:
        if not wire.closed:
            connection.data_received(piece)
    connection.connection_lost(None)
    await asyncio.sleep(0)  # what is no prediction is nobody's
    assert wire.written.count(b"HTTP/1.1 200") == len(echo.asked)
    return echo


def request(body: bytes, headers: list[bytes], end: bytes = b"\r\n") -> bytes:
    lines = [b"POST /m:predict HTTP/1.1", b"host: t", b"content-length: %d" % len(body), *headers]
    return end.join([*lines, b"", body])


HEADERS = st.lists(
    st.sampled_from(
        [
            b"Host: a",
            b"X-Request-Id: one",
            b"connection: close",
            b"connection: upgrade",
            b"upgrade: h2c",
            b"expect: 100-continue",
            b"x: a\r\n b",
            b"x:",
        ]
    ),
    max_size=3,
    unique=True,
)
REQUESTS = st.builds(
    request,
    st.sampled_from([b"", b"a", b"[1]", b"\r\n\r\n", b"POST /n:predict HTTP/1.1\r\n\r\n"]),
    HEADERS,
    st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n"]),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(REQUESTS, min_size=1, max_size=6), st.lists(st.integers(0, 600), max_size=4))
def test_a_head_from_memory_says_what_it_says_when_it_is_read(sent: list[bytes], cuts: list[int]) -> None:
    """However requests are cut into pieces, and whatever is remembered of those before."""

    async def main() -> None:
        stream = b"".join(sent)
        at = [0, *sorted({cut for cut in cuts if cut < len(stream)}), len(stream)]
        pieces = [stream[begin:end] for begin, end in itertools.pairwise(at) if begin < end]
        gate = ConnectionLimiter(ServerSettings())
        for whole in sent:  # all of them are remembered, if they can be
            await told(gate, [whole])
        for way in (sent, pieces):
            forgetful = ConnectionLimiter(ServerSettings())
            forgetful.head_cache.remember = lambda raw, head: None  # type: ignore[method-assign]
            assert (await told(gate, way)).asked == (await told(forgetful, way)).asked

    asyncio.run(main())


def test_what_is_the_same_is_read_once() -> None:
    """With other bodies of the same length, whole in one piece; clients share what is remembered."""

    async def main() -> None:
        gate = ConnectionLimiter(ServerSettings())
        for body in (b"a", b"b"):
            for _ in range(2):
                assert (await told(gate, [request(body, []), request(body, [])])).asked[1][2] == body
        assert len(gate.head_cache) == 1

    asyncio.run(main())


def test_few_heads_are_remembered_and_no_long_ones() -> None:
    """Clients may make them up."""
    heads = RequestHeadCache()
    for number in range(1000):
        raw = b"POST /m:predict HTTP/1.1\r\nx-request-id: %d\r\n\r\n" % number
        heads.remember(raw, RequestHead("POST", "/m:predict", [(b"x-request-id", b"%d" % number)]))
        assert heads.get(raw) is not None
        assert len(heads) <= 256
    long = b"POST /m:predict HTTP/1.1\r\nx: %b\r\n\r\n" % (b"x" * 1024)
    heads.remember(long, RequestHead("POST", "/m:predict", [(b"x", b"x" * 1024)]))
    assert heads.get(long) is None


def test_what_is_heeded_is_the_first_of_its_name() -> None:
    """Like wherever else headers are looked at."""
    head = RequestHead(
        "POST", "/", [(b"x-request-timeout", b"1"), (b"a", b"b"), (b"x-request-timeout", b"2")]
    )
    assert head.prediction_headers == {b"x-request-timeout": b"1"}
