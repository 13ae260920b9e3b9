"""Requests that two programs may read differently, through real proxies: both must see the same requests.

A proxy joins the requests of many clients on one connection. If the server saw a request there that the proxy
did not send as one, its answer would go to somebody else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress

import httptools
import pytest

from tests.end_to_end import models
from tests.end_to_end.proxies import Answers, Proxy, running_proxy
from tests.server import Server, running_server

VERSION = "projects/proxies/models/m/versions/v1"
FLAGS = ("--header-timeout", "1", "--body-timeout", "1")

BODY = b'{"instances": [1]}'
HOST = b"Host: 127.0.0.1\r\n"
PREDICT = f"/v1/{VERSION}:predict".encode()
# What must never be seen as a request. Its answer would name the project.
SMUGGLED = b"GET /v1/projects/smuggled/models/there HTTP/1.1\r\n" + HOST + b"\r\n"
# The same as the data of a chunked body.
CHUNKED = b"0\r\n\r\n" + SMUGGLED


def post(
    headers: bytes, body: bytes = BODY, *, first: bytes = b"POST " + PREDICT + b" HTTP/1.1\r\n"
) -> bytes:
    """A prediction with these headers besides `Host`."""
    return first + HOST + headers + b"\r\n" + body


def length(body: bytes) -> bytes:
    return b"Content-Length: %d\r\n" % len(body)


def chunk(data: bytes, extension: bytes = b"", end: bytes = b"\r\n") -> bytes:
    return b"%x%s%s" % (len(data), extension, end) + data + end


TE = b"Transfer-Encoding: chunked\r\n"
END = b"0\r\n\r\n"
WHOLE = post(length(BODY))
# Asked on a connection that ends then.
LAST = post(b"Connection: close\r\n" + length(b'{"instances": [7]}'), b'{"instances": [7]}')
# Obfuscations of the one header that counts.
ENCODINGS = (
    b"Transfer-Encoding : chunked",
    b"Transfer-Encoding:\tchunked",
    b"Transfer-Encoding: xchunked",
    b"Transfer-Encoding: chunked, identity",
    b"Transfer-Encoding: identity, chunked",
    b"Transfer-Encoding: Chunked",
    b"Transfer-Encoding:\x0bchunked",
    b"Transfer-Encoding: \x00chunked",
    b'Transfer-Encoding: "chunked"',
    b" Transfer-Encoding: chunked",
    b"X: x\r\n Transfer-Encoding: chunked",
    b"X: x\nTransfer-Encoding: chunked",
    b"X: x\rTransfer-Encoding: chunked",
    b"Transfer-Encoding\r\n: chunked",
    b"Transfer-Encoding:\r\n chunked",
    b"Transfer_Encoding: chunked",
    b"Transfer Encoding: chunked",
    b"Transfer-Encoding\x00: chunked",
    b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x",
    b"Transfer-Encoding: chunked,",
    b"Transfer-Encoding: ,chunked",
    b"Transfer-Encoding: chunked;q=1",
    b"Transfer-Encoding:",
    b"Transfer-Encoding: gzip",
    b"TE: chunked",
)
# Lengths that are told in odd ways: %d is the number of bytes of the body.
LENGTHS = (
    b"Content-Length: +%d",
    b"Content-Length: -%d",
    b"Content-Length : %d",
    b"Content-Length: 0%d",
    b"Content-Length: 0x%x",
    b"Content-Length: %d,%d",
    b"Content-Length: %d, 0",
    b"Content-Length: %d 0",
    b"Content-Length: %d.0",
    b"Content-Length: 1_8",
    b"Content-Length: %d\x0b",
    b"Content-Length: \xb2%d",
    b"Content-Length: %d\r\nContent-Length: %d",
    b"Content-Length: %d\r\nContent-Length: 0",
    b"Content-Length: 0\r\nContent-Length: %d",
    b"Content-Length:\r\n %d",
    b"Content-Length: 99999999999999999999%d",
    b"Content-Length: 18446744073709551634",
    b"Content_Length: %d",
    b"Content-Length\x00: %d",
    b" Content-Length: %d",
    b"Content-Length:",
)
EXTENSIONS = (
    b";x=y",
    b" ;x",
    b';x="\r\n"',
    b";\n",
    b";x\rx",
    b"; " + b"x" * 5000,
    b" ",
    b"\t",
    b"\x00",
)
SIZES = (b"0x12", b"+12", b"-1", b"12 ", b" 12", b"0012", b"FFFFFFFFFFFFFFFFF12", b"1_2", b"", b"g")
WEBSOCKET = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"


def line(target: bytes, version: bytes = b"1.1", method: bytes = b"POST") -> bytes:
    return b"%s %s HTTP/%s\r\n" % (method, target, version)


def told(how: bytes, size: int) -> bytes:
    """A length, told in a way."""
    return how.replace(b"%d", b"%d" % size).replace(b"%x", b"%x" % size)


def attacks() -> Iterator[tuple[str, bytes]]:
    """Each with a name, and a request in it or behind it that is to be smuggled."""
    yield from lengths_and_encodings()
    yield from chunks()
    yield from lines_and_headers()
    yield from agreements()


def lengths_and_encodings() -> Iterator[tuple[str, bytes]]:
    """Where does the body end?"""
    yield "CL.TE", post(length(CHUNKED) + TE, CHUNKED)
    yield "TE.CL", post(b"Content-Length: 4\r\n" + TE, chunk(SMUGGLED) + END)
    yield "CL.TE, the encoding first", post(TE + length(CHUNKED), CHUNKED)
    yield "CL.0", post(length(SMUGGLED), SMUGGLED, first=line(b"/healthz", method=b"GET"))
    yield "0.CL", post(b"Content-Length: 0\r\n", SMUGGLED)
    yield "no length", post(b"", SMUGGLED)
    for number, encoding in enumerate(ENCODINGS):
        header = encoding + b"\r\n"
        yield f"TE.TE {number}", post(length(CHUNKED) + header, CHUNKED)
        yield f"TE.TE {number} without a length", post(header, CHUNKED)
        yield f"TE.TE {number}, short", post(b"Content-Length: 4\r\n" + header, chunk(SMUGGLED) + END)
    for number, how in enumerate(LENGTHS):
        yield f"length {number}", post(told(how, len(BODY)) + b"\r\n", BODY + SMUGGLED)
        yield f"length {number}, short", post(told(how, 4) + b"\r\n", BODY + SMUGGLED)
    yield "a body that is too long", post(b"Content-Length: 2000000\r\n", SMUGGLED * 10)
    yield "a refused body", post(length(b"{" * 5000), b"{" * 5000) + SMUGGLED


def chunks() -> Iterator[tuple[str, bytes]]:
    """Where does a chunk end?"""
    for number, extension in enumerate(EXTENSIONS):
        yield f"chunk extension {number}", post(TE, chunk(BODY, extension) + END + SMUGGLED)
        last = b"0" + extension + b"\r\n\r\n"
        yield f"last chunk extension {number}", post(TE, chunk(BODY) + last + SMUGGLED)
    for number, size in enumerate(SIZES):
        yield f"chunk size {number}", post(TE, size + b"\r\n" + BODY + b"\r\n" + END + SMUGGLED)
    yield "chunks with bare line feeds", post(TE, chunk(BODY, end=b"\n") + b"0\n\n" + SMUGGLED)
    yield "a chunk longer than told", post(TE, b"4\r\n" + BODY + b"\r\n" + END + SMUGGLED)
    yield "a chunk without its end", post(TE, b"12\r\n" + BODY + END + SMUGGLED)
    trailers = b"0\r\nContent-Length: 99\r\nTransfer-Encoding: x\r\n\r\n"
    yield "trailers", post(TE, chunk(BODY) + trailers + SMUGGLED)
    yield "a folded trailer", post(TE, chunk(BODY) + b"0\r\nX: y\r\n z\r\n\r\n" + SMUGGLED)


def lines_and_headers() -> Iterator[tuple[str, bytes]]:
    """Where does a line end, and what does it say?"""
    yield "bare line feeds", WHOLE.replace(b"\r\n", b"\n") + SMUGGLED
    yield "bare carriage returns", WHOLE.replace(b"\r\n", b"\r") + SMUGGLED
    for name, header in {
        "a bare line feed before the length": b"X: y\n",
        "a folded header": b"X: y\r\n z\r\n",
        "a folded header like a length": b"X: y\r\n Content-Length: 0\r\n",
        "a space in a name": b"X Y: z\r\n",
        "an underscore in a name": b"X_Y: z\r\n",
        "a header without a colon": b"nothing\r\n",
        "a header without a name": b": nothing\r\n",
        "two hosts": b"Host: other\r\n",
    }.items():
        yield name, post(header + length(BODY)) + SMUGGLED
    yield "a folded length", post(b"Content-Length: 1\r\n 8\r\n", BODY + SMUGGLED)
    yield "no host", WHOLE.replace(HOST, b"") + SMUGGLED
    yield "a space before the line", b" " + WHOLE + SMUGGLED
    yield "empty lines before", b"\r\n\r\n" + WHOLE + SMUGGLED
    encoded = SMUGGLED.replace(b" ", b"%20").replace(b"\r\n", b"%0d%0a")
    for name, first in {
        "absolute form": line(b"http://127.0.0.1" + PREDICT),
        "absolute form of another host": line(b"http://other.example" + PREDICT),
        "a space in the path": line(b"/a HTTP/1.1 " + PREDICT),
        "encoded lines in the path": line(b"/a%0d%0a%0d%0a" + encoded),
        "HTTP/1.2": line(PREDICT, b"1.2"),
        "HTTP/2 in words": line(PREDICT, b"2"),
    }.items():
        yield name, post(length(BODY), first=first) + SMUGGLED
    yield "HTTP/0.9", b"GET /healthz\r\n" + SMUGGLED
    old = line(PREDICT, b"1.0")
    yield "HTTP/1.0 with chunks", post(TE, chunk(BODY) + END + SMUGGLED, first=old)
    yield "HTTP/1.0 to be kept", post(b"Connection: keep-alive\r\n" + length(BODY), first=old) + SMUGGLED
    yield "CONNECT of an address", post(b"", SMUGGLED, first=line(b"127.0.0.1:1", method=b"CONNECT"))
    yield "CONNECT of a path", post(b"", SMUGGLED, first=line(b"/healthz", method=b"CONNECT"))


def agreements() -> Iterator[tuple[str, bytes]]:
    """What two ends of a connection may agree upon, and the one between them does not."""
    expect = b"Expect: 100-continue\r\n"
    yield "Expect", post(expect + length(BODY)) + SMUGGLED
    yield "Expect, and another request as the body", post(expect + length(SMUGGLED), SMUGGLED)
    yield "Expect of nothing", post(expect + length(SMUGGLED), SMUGGLED, first=line(b"/nothing"))
    yield "Expect of something else", post(b"Expect: 200-ok\r\n" + length(SMUGGLED), SMUGGLED)
    yield "Upgrade to h2c", post(H2C + length(BODY)) + SMUGGLED
    yield "Upgrade to WebSocket", post(WEBSOCKET, SMUGGLED, first=line(b"/healthz", method=b"GET"))
    yield "HTTP/2 at once", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SMUGGLED
    yield "a length of the hop", post(b"Connection: Content-Length\r\n" + length(SMUGGLED), SMUGGLED)
    yield "an encoding of the hop", post(b"Connection: Transfer-Encoding\r\n" + TE, chunk(SMUGGLED) + END)


ATTACKS: Mapping[str, bytes] = dict(attacks())
# Behind these the smuggled request is none: every program must see it, as a request of its own.
HONEST = {"plain": WHOLE, "two at once": WHOLE + WHOLE, "chunks": post(TE, chunk(BODY) + END)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with one version, and little patience."""
    root = tmp_path_factory.mktemp("behind")
    with running_server(root / "state", *FLAGS, "--max-body-bytes", "1000000") as server:
        server.create_model(VERSION.partition("/versions")[0])
        server.create_version(VERSION, **models.routine(root))
        yield server
        assert server.stop() == 0


@pytest.fixture(scope="module", params=["nginx", "haproxy"])
def proxy(
    request: pytest.FixtureRequest, server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Proxy]:
    """Each of the proxies that people put in front."""
    with running_proxy(request.param, server.url, tmp_path_factory.mktemp(request.param)) as proxy:
        yield proxy


@pytest.mark.parametrize("name", HONEST)
def test_what_is_plain_goes_through(proxy: Proxy, name: str) -> None:
    """One answer for each, and the wire and the log of the proxy agree about how many there were."""
    requests, answers = proxy.requests(), answered(proxy)
    count = HONEST[name].count(b"POST ")

    found = Answers().read(proxy.ask(HONEST[name]))

    assert found.statuses == [200] * count
    assert proxy.requests() - requests == answered(proxy) - answers == count


@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_is_smuggled(proxy: Proxy, name: str) -> None:
    """The server answers only what the proxy sent as a request; the next client gets its own answer."""
    requests, answers = proxy.requests(), answered(proxy)

    back = Answers()
    with suppress(
        httptools.HttpParserError
    ):  # nginx answers HTTP/0.9, HAProxy HTTP/2 without being asked twice
        back.read(proxy.ask(ATTACKS[name] + LAST))
    (next_one,) = Answers().read(proxy.ask(LAST)).bodies

    assert json.loads(next_one) == {"predictions": [14]}
    sent = proxy.requests() - requests
    assert answered(proxy) - answers <= sent
    assert len(back.statuses) <= sent + 1


def answered(proxy: Proxy) -> int:
    """How many answers the server has given."""
    return sum(len(answers.statuses) for answers in proxy.wire.answers())
