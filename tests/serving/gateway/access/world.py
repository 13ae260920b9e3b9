"""A whole gateway with access control, in this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx

from serving.config import ServeConfig
from serving.gateway.access.policy import ADMIN, normalize_principal
from serving.gateway.access.token_store import TokenStore
from serving.gateway.access.tokens import mint_token
from serving.gateway.app import Gateway
from serving.gateway.state.store import SqliteStore
from tests.bounds import HANG_SECONDS
from tests.http_requests import through


class Api:
    """A gateway, and clients of it by their principals."""

    def __init__(self, gateway: Gateway, tokens: TokenStore, client: httpx.AsyncClient) -> None:
        self.gateway = gateway
        self.tokens = tokens
        self.client = client
        self._known: dict[str, str] = {}

    async def token(self, principal: str, *, seconds: float | None = None) -> str:
        """A token that the gateway knows."""
        token, record = mint_token(normalize_principal(principal), time.time(), seconds=seconds)
        await asyncio.to_thread(self.tokens.put, record)
        assert self.gateway._access is not None
        await self.gateway._access.refresh_tokens()
        return token

    async def send(
        self, principal: str, verb: str, path: str, json: Any = None, **headers: str
    ) -> httpx.Response:
        """One request; `principal` is "" for one without a token."""
        if principal:
            if principal not in self._known:
                self._known[principal] = await self.token(principal)
            headers["authorization"] = f"Bearer {self._known[principal]}"
        return await self.client.request(verb, path, json=json, headers=headers)

    async def call(self, principal: str, verb: str, path: str, json: Any = None, status: int = 200) -> Any:
        """The answer to one request, which has the status."""
        response = await self.send(principal, verb, path, json)
        assert response.status_code == status, response.text
        return response.json()

    async def bind(self, resource: str, **members: str) -> Any:
        """Set a policy as the admin: role, without `roles/` and with `_` for `.`, and its one member."""
        bindings = [
            {"role": f"roles/{role.replace('_', '.')}", "members": [member]}
            for role, member in members.items()
        ]
        return await self.call(
            ADMIN.principal, "POST", f"/v1/{resource}:setIamPolicy", {"policy": {"bindings": bindings}}
        )


def run(folder: Path, main: Callable[[Api], Awaitable[None]]) -> None:
    """A test on a gateway from its start to its stop."""

    async def bounded() -> None:
        config = ServeConfig(
            state_dir=folder, pilots="off", access="on", api_requests_per_minute=0, default_project="p"
        )
        tokens = TokenStore(folder / "state.db")
        gateway = Gateway(config, SqliteStore(folder / "state.db"), {}, tokens=tokens)
        router = gateway._router
        async with (
            asyncio.timeout(HANG_SECONDS),
            router.router.lifespan_context(router),
            httpx.AsyncClient(
                transport=httpx.ASGITransport(through(gateway, gateway.prediction_handler)),
                base_url="http://test",
            ) as client,
        ):
            await main(Api(gateway, tokens, client))

    asyncio.run(bounded())
