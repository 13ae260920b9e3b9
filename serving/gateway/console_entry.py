"""The way into the console, which is imported at the first visit and not before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import RedirectResponse

from serving.gateway.api.in_process import AsgiApp
from serving.gateway.thread_pool import ThreadPool
from serving.http_headers import Receive, Scope, Send

CONSOLE_PATHS = ("/console", "/console/{rest:path}")


class ConsoleEntry:
    """The ASGI application for CONSOLE_PATHS. `create` imports and makes the console; it blocks."""

    def __init__(self, create: Callable[[], AsgiApp]) -> None:
        self._create = create
        self._lock = asyncio.Lock()
        self._console: AsgiApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/console":
            await RedirectResponse("/console/", 307)(scope, receive, send)
            return
        if self._console is None:
            async with self._lock:
                if self._console is None:
                    # Not on the event loop: it takes a tenth of a second.
                    self._console = await ThreadPool("console import", 1).run(self._create)
        await self._console(scope, receive, send)


def wants_page(request: Request) -> bool:
    """Whether a browser asks, not a client of the API."""
    return "text/html" in request.headers.get("accept", "")
