"""A whole gateway in this process, and browsers without scripts that visit its console."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from html import unescape
from pathlib import Path
from typing import Any

import httpx

from serving.config import ServeConfig
from serving.gateway.access.token_store import TokenStore
from serving.gateway.app import Gateway
from serving.gateway.jobs.kinds.prediction.prediction_kind import JOB_COMMAND
from serving.gateway.state.store import SqliteStore
from tests.bounds import HANG_SECONDS
from tests.http_requests import through
from tests.serving.gateway.access.world import Api

ROOT = "/console"
_TOKEN = re.compile(r'name="anti_forgery_token" value="([0-9a-f]+)"')


class Browser:
    """A visitor: keeps cookies, follows redirects, and sends forms with the token of the page before."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        self._token = ""

    async def open(self, path: str, status: int = 200, **headers: str) -> str:
        """The text of a page; it has the status."""
        response = await self.client.get(ROOT + path, headers={"accept": "text/html", **headers})
        return self._read(response, status)

    async def post(self, path: str, fields: Mapping[str, str], status: int = 200) -> str:
        """The page after sending a form, whose anti-forgery token is that of the last page unless given."""
        data = {"anti_forgery_token": self._token, **fields}
        return self._read(await self.client.post(ROOT + path, data=data), status)

    async def sign_in(self, token: str, status: int = 200) -> str:
        await self.open("/sign-in")
        return await self.post("/sign-in", {"token": token}, status)

    def _read(self, response: httpx.Response, status: int) -> str:
        assert response.status_code == status, response.text
        if found := _TOKEN.search(response.text):
            self._token = found[1]
        return response.text


class World:
    """A gateway with its API, and its browsers."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.gateway = api.gateway

    @asynccontextmanager
    async def browser(self) -> AsyncIterator[Browser]:
        transport = httpx.ASGITransport(through(self.gateway, self.gateway.prediction_handler))
        async with httpx.AsyncClient(
            transport=transport, base_url="http://test:8080", follow_redirects=True
        ) as client:
            yield Browser(client)


def run(
    folder: Path,
    main: Callable[[World], Awaitable[None]],
    *,
    environment: Mapping[str, str] | None = None,
    job_command: Sequence[str] = JOB_COMMAND,
    **settings: Any,
) -> None:
    """A test on a gateway from its start to its stop; without access control unless `access` is "on"."""
    settings = {"access": "off", "pilots": "off", "default_project": "p", **settings}

    async def bounded() -> None:
        tokens = TokenStore(folder / "state.db")
        gateway = Gateway(
            ServeConfig(state_dir=folder, **settings),
            SqliteStore(folder / "state.db"),
            environment or {},
            job_command=job_command,
            tokens=tokens if settings["access"] == "on" else None,
        )
        router = gateway._router
        async with (
            asyncio.timeout(HANG_SECONDS),
            router.router.lifespan_context(router),
            httpx.AsyncClient(
                transport=httpx.ASGITransport(through(gateway, gateway.prediction_handler)),
                base_url="http://test",
            ) as client,
        ):
            await main(World(Api(gateway, tokens, client)))
        tokens.close()

    asyncio.run(bounded())


def visible_text(page: str) -> str:
    """What a page says, without its markup."""
    return unescape(re.sub(r"<[^>]*>", " ", page))
