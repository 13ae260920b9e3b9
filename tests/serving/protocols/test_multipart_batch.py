"""Batches of requests are read as a whole, or refused."""

from __future__ import annotations

import time

import pytest

from serving.errors import InvalidArgument
from serving.protocols.multipart_batch import (
    MOST_PARTS,
    BatchPart,
    parse_batch,
    parse_boundary,
    render_answer,
    render_batch,
)

# As Java's client sends it, Content-Length and URLs in full included.
JAVA = (
    b"--__END_OF_PART__4dcd9c55__\r\nContent-Length: 140\r\nContent-Type: application/http\r\n"
    b"content-id: 1\r\n"
    b"content-transfer-encoding: binary\r\n\r\nGET http://127.0.0.1:28472/v1/projects/p/models/m HTTP/1.1\r\n"
    b"x-goog-api-client: gl-java/17.0.15 gdcl/1.31.1 linux/6.18.44\r\n\r\n\r\n--__END_OF_PART__4dcd9c55__\r\n"
    b"Content-Length: 219\r\nContent-Type: application/http\r\ncontent-id: 3\r\n"
    b"content-transfer-encoding: binary\r\n\r\nPOST http://127.0.0.1:28472/v1/projects/p/models HTTP/1.1\r\n"
    b"Content-Length: 12\r\nContent-Type: application/json; charset=UTF-8\r\n"
    b"x-goog-api-client: gl-java/17.0.15 gdcl/1.31.1 linux/6.18.44\r\n\r\n"
    b'{"name":"x"}\r\n--__END_OF_PART__4dcd9c55__--\r\n'
)
# As Python's does: a preamble of nothing, line feeds alone, ids in angle brackets.
PYTHON = (
    b"--===============7330845974216740156==\nContent-Type: application/http\nMIME-Version: 1.0\n"
    b"Content-Transfer-Encoding: binary\nContent-ID: <b29c5de2-0db4-490b-b421-6a51b598bd22 + 1>\n\n"
    b"POST /v1/projects/p/models?fields=name HTTP/1.1\nContent-Type: application/json\nMIME-Version: 1.0\n"
    b'authorization: Bearer x\nHost: evil.example\ncontent-length: 12\n\n{"name":"x"}\n'
    b"--===============7330845974216740156==--"
)


def batch(*parts: bytes) -> bytes:
    return b"".join(b"--b\r\n%b\r\n" % part for part in parts) + b"--b--"


def part(request: bytes, *headers: bytes) -> bytes:
    return b"\r\n".join([b"Content-Type: application/http", *headers, b"", request])


def test_what_java_sends_is_read() -> None:
    """The host in a URL says nothing: there is one server."""
    first, second = parse_batch(JAVA, b"__END_OF_PART__4dcd9c55__")

    assert first == BatchPart(1, b"1", "GET", b"/v1/projects/p/models/m")
    assert (second.method, second.target, second.body) == ("POST", b"/v1/projects/p/models", b'{"name":"x"}')
    assert second.headers == [(b"content-type", b"application/json; charset=UTF-8")]


def test_what_python_sends_is_read() -> None:
    """A part keeps its token; what is of connections it cannot say."""
    (only,) = parse_batch(PYTHON, b"===============7330845974216740156==")

    assert only.target == b"/v1/projects/p/models?fields=name"
    assert only.body == b'{"name":"x"}'
    assert only.headers == [(b"content-type", b"application/json"), (b"authorization", b"Bearer x")]
    assert only.content_id == b"<b29c5de2-0db4-490b-b421-6a51b598bd22 + 1>"


GET = b"GET /v1/projects/p/models HTTP/1.1\r\n\r\n"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "no end"),
        (b"--b\r\n", "no end"),
        (batch(), "no parts"),
        (batch(part(GET)).removesuffix(b"--"), "no end"),
        (batch(part(GET)).replace(b"--b\r\n", b"--bb\r\n", 1), "Part 1 .*boundary"),
        (batch(part(GET), b"\r\n" + GET), "Part 2 .*application/http"),
        (batch(part(GET, b"Content-Transfer-Encoding: base64")), "binary"),
        (batch(part(GET, b"Content-ID: a\rb")), "headers"),
        (batch(part(GET, b"Content-ID: " + b"a" * 300)), "Content-ID"),
        (batch(part(b"GET v1 HTTP/1.1\r\n\r\n")), "METHOD /PATH"),
        (batch(part(b"GET /v1/a b HTTP/1.1\r\n\r\n")), "METHOD /PATH"),
        (batch(part(b"GET ftp://h/v1/a HTTP/1.1\r\n\r\n")), "METHOD /PATH"),
        (batch(part(b"GET /v1/a HTTP/2\r\n\r\n")), "METHOD /PATH"),
        (batch(part(b"POST /batch HTTP/1.1\r\n\r\n")), "for none of"),
        (batch(part(b"GET /metrics HTTP/1.1\r\n\r\n")), "for none of"),
        (batch(part(b"GET /v1/a HTTP/1.1\r\nA: b\r\n c\r\n\r\n")), "headers"),
        (batch(part(b"GET /v1/a HTTP/1.1\r\nAuthorization: a\r\nauthorization: b\r\n\r\n")), "twice"),
        (batch(part(b"GET /v1/a HTTP/1.1\r\n" + b"A1: b\r\n" * 2 + b"\r\n")), "twice"),
        (batch(part(b"POST /v1/a HTTP/1.1\r\nContent-Length: 9\r\n\r\n{}")), "Content-Length"),
        (batch(part(b"POST /v1/a HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}GET")), "Content-Length"),
        (batch(*[part(GET)] * (MOST_PARTS + 1)), f"at most {MOST_PARTS} parts"),
    ],
)
def test_what_cannot_be_read_is_refused(body: bytes, says: str) -> None:
    """Naming the part."""
    with pytest.raises(InvalidArgument, match=says):
        parse_batch(body, b"b")


@pytest.mark.parametrize(
    "body",
    [
        batch(part(b"GET /v1/a HTTP/1.1\r\n" + b"a: b\r\n" * 700_000)),
        batch(part(b"GET /v1/a HTTP/1.1\r\na: " + b" " * 4_000_000 + b"\x01")),
        b"--b\n" * 1_000_000,
        b"\n" * 4_000_000,
    ],
)
def test_bad_batches_take_no_time(body: bytes) -> None:
    """Nothing grows with the square of a body."""
    begin = time.process_time()
    with pytest.raises(InvalidArgument):
        parse_batch(body, b"b")

    assert time.process_time() - begin < 1


@pytest.mark.parametrize(
    "content_type",
    [
        "",
        "multipart/mixed",
        "text/plain; boundary=b",
        'multipart/mixed; boundary=""',
        "multipart/mixed; boundary=a\x01",
    ],
)
def test_a_batch_says_its_boundary(content_type: str) -> None:
    """Of its own type alone."""
    with pytest.raises(InvalidArgument, match="multipart/mixed; boundary"):
        parse_boundary(content_type)
    assert parse_boundary('multipart/mixed; boundary="==a=="') == b"==a=="


def test_answers_are_told_apart() -> None:
    """By the id of the request."""
    asked = BatchPart(1, b"<x + 1>", "GET", b"/v1/a")

    answer = render_answer(asked, 200, [(b"content-type", b"application/json")], b"{}")

    assert render_batch([answer], b"b") == (
        b"--b\r\nContent-Type: application/http\r\nContent-ID: <response-x + 1>\r\n\r\nHTTP/1.1 200 OK\r\n"
        b"content-type: application/json\r\ncontent-length: 2\r\n\r\n{}\r\n--b--\r\n"
    )
