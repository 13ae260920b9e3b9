"""Requests that nobody should send, made from the routes and from the schemas of the discovery document."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any
from urllib.parse import quote, unquote

from serving.protocols import Dialect
from serving.protocols.paths import detect_dialect

VERBS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "BREW", "")
# Instead of an id in a path.
SEGMENTS = (
    "p", "m", "v", "", ".", "..", "%2e%2e", "%2f", "%00", "%ff%fe", "%c3%a9", "%", "%zz", ":", "m:", ":m",
    "m:predict",
    "a" * 10_000, "é", "%0a", "m%3Apredict", "m;x=1", "m?x", "*", "{id}", "~", "\\", "%ed%a0%80", "m:m:m",
    " ", "-",
)  # fmt: skip
QUERIES = (
    "", "pageSize=1", "pageSize=-1", "pageSize=%00", "pageToken=%ff", "pageToken=cHJvamVjdHMvx", "filter=%22",
    "filter=((((", "filter=" + "NOT%20" * 300, "filter=name:" + "a" * 9000, "updateMask=",
    "updateMask=%2C%2C",
    "updateMask=description&updateMask=labels", "updateMask=labels.a.b.c", "updateMask=%F0%9F%98%80",
    "alt=media",
    "$.xgafv=3", "&&&===", "%", "a" * 9000, "updateMask=etag", "updateMask=defaultVersion.name", "view=FULL",
)  # fmt: skip
HEADERS: tuple[Mapping[bytes, bytes], ...] = (
    {},
    {b"host": b"["},
    {b"host": b"\xff\xfe"},
    {b"host": b""},
    {b"content-type": b"text/plain"},
    {b"content-encoding": b"gzip"},
    {b"content-length": b"-1"},
    {b"x-request-timeout": b"nan"},
    {b"x-request-timeout": b"-1e999"},
    {b"x-request-id": b"\xff" * 200},
    {b"traceparent": b"00-zz-zz-zz"},
    {b"authorization": b"Bearer \xff\x00"},
    {b"x-http-method-override": b"DELETE"},
    {b"cookie": b"=" * 5000},
    {b"accept": b"\x00"},
)
BODIES = (
    b"", b"{}", b"[]", b"null", b"0", b'"x"', b"{", b"\xff", b"\xef\xbb\xbf{}", b'{"a":' * 2000,
    b"[" * 100_000,
    b'{"instances":[' + b"[" * 1200 + b"]" * 1200 + b"]}", b'{"name":"\\ud800"}', b'{"name":"\\u0000"}',
    b"\x1f\x8b\x08\x00",
    b'{"name":1e999}', b'{"name":' + b"9" * 5000 + b"}", b'{"": {}}', b'{"policy":{"bindings":[{}]}}',
    b'{"permissions":"x"}',
    b'{"policy":{"etag":"%"}}', b'{"description":"' + b"x" * (5 << 20) + b'"}',
)  # fmt: skip
# Instead of what a field takes.
WRONG: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, 1e300, 2**63, 2**64 - 1, "", "x", "\x00", "9" * 5000, "\U0001f600", "../..",
    "gs://",
    [], [[]], [None], [1], ["", ""], {}, {"": ""}, {"a": {"b": []}}, {"seconds": "x"},
)  # fmt: skip


@dataclass(frozen=True)
class Ask:
    """A request as it comes from the wire: a path that is not decoded yet."""

    verb: str
    path: str
    query: str = ""
    headers: Mapping[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True)
class Told:
    """An answer."""

    status: int
    headers: Mapping[bytes, bytes]
    body: bytes


async def ask(app: Any, asked: Ask) -> Told:
    """Give the request to an ASGI application as the HTTP server does."""
    raw = quote(asked.path, safe="/:%{}*;?\\ ~.-").encode()
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": asked.verb,
        "scheme": "http",
        "path": unquote(raw.decode()),
        "raw_path": raw,
        "root_path": "",
        "query_string": asked.query.encode(),
        "headers": [(b"host", b"localhost"), *asked.headers.items()]
        if b"host" not in asked.headers
        else list(asked.headers.items()),
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "state": {},
    }
    sent: list[Any] = []
    is_read = False
    is_streaming = asyncio.Event()

    async def receive() -> dict[str, Any]:
        nonlocal is_read
        if is_read:
            await is_streaming.wait()  # the client waits for its answer, but not for the end of events
            return {"type": "http.disconnect"}
        is_read = True
        return {"type": "http.request", "body": asked.body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)
        if dict(message.get("headers", ())).get(b"content-type", b"").startswith(b"text/event-stream"):
            is_streaming.set()

    await app(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in sent)
    return Told(sent[0]["status"], dict(sent[0]["headers"]), body)


def check(asked: Ask, told: Told) -> None:
    """No failure of the server's own, and errors in the form of their protocol, without what is inside."""
    if told.status == 503 and asked.path.endswith("/ready"):  # the answer for what cannot be asked
        assert json.loads(told.body)["ready"] is False
        return
    assert told.status < 500, (asked, told)
    assert b"Traceback" not in told.body, (asked, told)
    assert b'File "' not in told.body, (asked, told)
    if told.status >= 400:
        document = json.loads(told.body)
        assert list(document) == ["error"], (asked, told)
        error = document["error"]
        if detect_dialect(unquote(asked.path)) is not Dialect.AI_PLATFORM:
            assert isinstance(error, str), (asked, told)
            assert error.strip()
            return
        assert error.keys() - {"details"} == {"code", "message", "status"}, (asked, told)
        assert error["code"] == told.status
        assert error["message"].strip()


# ---- any request


def some(random: Random, routes: Sequence[tuple[str, str]]) -> Ask:
    """A request to one of the routes, a path with `{…}` for ids and its verb, something wrong in it."""
    path, verb = random.choice(routes)
    parts = [part if "{" not in part else _segment(random, part) for part in path.split("/")]
    if random.random() < 0.1:
        parts.insert(random.randrange(len(parts) + 1), random.choice(SEGMENTS))
    path = "/" + "/".join(parts).lstrip("/") if random.random() < 0.95 else "//" + "/".join(parts)
    if random.random() < 0.05:
        path += random.choice(("/", "//", ":predict", ":x", "%20", "/.."))
    return Ask(
        verb if random.random() < 0.6 else random.choice(VERBS),
        path,
        random.choice(QUERIES) if random.random() < 0.5 else "",
        random.choice(HEADERS) if random.random() < 0.5 else {},
        random.choice(BODIES[:-1]) if random.random() < 0.995 else BODIES[-1],
    )


def _segment(random: Random, part: str) -> str:
    """What stands for `{id}` or `{id}:verb`."""
    name, _, verb = part.partition("}")
    known = {"{project": "p", "{model": "m", "{version": "v", "{job": "j"}
    plain = next((value for key, value in known.items() if name.startswith(key)), "x")
    return (plain if random.random() < 0.7 else random.choice(SEGMENTS)) + verb


# ---- documents with one wrong field


def documents(schemas: Mapping[str, Any], schema: str, base: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A good document with each of its fields, at any depth, replaced by each wrong value."""
    for path in _paths(schemas, schemas[schema], 2):
        for wrong in WRONG:
            yield _replaced(base, path, wrong)


def _paths(schemas: Mapping[str, Any], schema: Mapping[str, Any], depth: int) -> Iterator[tuple[str, ...]]:
    for name, kind in schema.get("properties", {}).items():
        yield (name,)
        inner = kind.get("items", kind)
        if "$ref" in inner and depth > 1:
            yield from ((name, *rest) for rest in _paths(schemas, schemas[inner["$ref"]], depth - 1))


def _replaced(base: Mapping[str, Any], path: tuple[str, ...], wrong: Any) -> dict[str, Any]:
    name, *rest = path
    inner = base.get(name)
    given = _replaced(inner if isinstance(inner, dict) else {}, tuple(rest), wrong) if rest else wrong
    return {**base, name: given}
