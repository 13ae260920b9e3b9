"""ASGI applications, asked without a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import orjson

PATH = "/v1/projects/p/models/m:predict"


@dataclass(frozen=True)
class Reply:
    """What an application answered."""

    status: int
    headers: Mapping[str, str]
    json: Any


async def ask(
    app: Any, body: Any, headers: Mapping[str, str] | None = None, *, method: str = "POST", path: str = PATH
) -> Reply:
    """One request with a JSON body."""
    sent: list[Any] = []
    waiting = [{"type": "http.request", "body": orjson.dumps(body), "more_body": False}]

    async def receive() -> Any:
        if waiting:
            return waiting.pop()
        return await asyncio.Event().wait()  # the client stays

    async def send(message: Any) -> None:
        sent.append(message)

    head = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
    scope = {"type": "http", "method": method, "path": path, "headers": head, "query_string": b""}
    await app(scope, receive, send)
    start, *rest = sent
    answer = b"".join(message.get("body", b"") for message in rest)
    names = {name.decode(): value.decode() for name, value in start["headers"]}
    return Reply(start["status"], names, orjson.loads(answer))


@asynccontextmanager
async def running(app: Any) -> AsyncIterator[None]:
    """The application between its start and its end, as a server would have it."""
    begun, ending, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
    waiting = [{"type": "lifespan.shutdown"}, {"type": "lifespan.startup"}]

    async def receive() -> Any:
        if len(waiting) == 1:
            await ending.wait()
        return waiting.pop()

    async def send(message: Any) -> None:
        {"lifespan.startup.complete": begun, "lifespan.shutdown.complete": ended}[message["type"]].set()

    task = asyncio.create_task(app({"type": "lifespan", "state": {}}, receive, send))
    await begun.wait()
    try:
        yield
    finally:
        ending.set()
        await ended.wait()
        await task
