"""Browsers that a load balancer sends to another of two gateways with each request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from serving.gateway.access.policy import ADMIN
from serving.gateway.access.token_store import TokenStore
from serving.gateway.access.tokens import mint_token
from serving.gateway.console.sessions import Session, SharedSessions
from serving.gateway.state.shared.postgres_store import PostgresStore
from tests.http_requests import through
from tests.postgres import Postgres
from tests.serving.gateway.cluster.world import Member, run
from tests.serving.gateway.console.world import Browser


@contextlib.asynccontextmanager
async def open_browser(*members: Member) -> AsyncIterator[Browser]:
    """Its requests go to the members in turn."""
    apps = [through(member.gateway, member.gateway.prediction_handler) for member in members]

    async def balance(scope: object, receive: object, send: object) -> None:
        apps.append(apps.pop(0))
        await apps[0](scope, receive, send)

    transport = httpx.ASGITransport(balance)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://test:8080", follow_redirects=True
    ) as client:
        yield Browser(client)


def test_a_session_holds_on_each_server(postgres: Postgres, tmp_path: Path) -> None:
    address = postgres.create_database()
    tokens = TokenStore(address)
    token, record = mint_token(ADMIN.principal, 0.0)
    tokens.put(record)
    tokens.close()

    async def main(a: Member, b: Member) -> None:
        async with open_browser(a, b) as browser:
            assert "Sign in" in await browser.open("/")
            await browser.sign_in(token)
            for _ in range(4):
                assert ADMIN.principal in await browser.open("/")
            cookie = browser.client.cookies["pilotlight-8080"]
            assert "Sign in" in await browser.post("/sign-out", {})

            browser.client.cookies.set("pilotlight-8080", cookie, domain="test.local", path="/console")
            for _ in range(2):
                assert "Sign in" in await browser.open("/")  # also for who has kept the cookie

    run(address, tmp_path, main, has_access=True)


def test_a_row_is_of_no_use_without_its_cookie_and_ends(postgres: Postgres) -> None:
    store = PostgresStore(postgres.create_database())
    first, second = SharedSessions(store.console_sessions), SharedSessions(store.console_sessions)

    def execute(statement: str) -> list[str]:
        with store._engine.begin() as connection:
            result = connection.exec_driver_sql(statement)
            return [str(row) for row in result] if result.returns_rows else []

    async def main() -> None:
        visitor = await first.open("plt_token")
        assert await second.find(visitor) == Session("plt_token")
        (row,) = execute("SELECT id, convert_from(token, 'LATIN1') FROM console_sessions")
        assert "plt" not in row
        assert visitor not in row

        execute("UPDATE console_sessions SET ends_at = now() + interval '9 hours'")
        assert await second.find(visitor) is None  # the clock was set back
        execute("UPDATE console_sessions SET ends_at = now()")
        assert await second.find(visitor) is None
        other = await second.open("plt_other")
        assert len(execute("SELECT id FROM console_sessions")) == 1
        await first.close(other)
        assert await second.find(other) is None

    asyncio.run(main())
    store.close()


@pytest.mark.parametrize("has_seen", [True, False])
def test_who_is_known_stays_signed_in_while_the_database_is_away(postgres: Postgres, has_seen: bool) -> None:
    store = PostgresStore(postgres.create_database())
    sessions = SharedSessions(store.console_sessions)

    async def main() -> None:
        visitor = await SharedSessions(store.console_sessions).open("plt_token")
        if has_seen:
            await sessions.find(visitor)
        postgres.stop()
        try:
            assert await sessions.find(visitor) == (Session("plt_token") if has_seen else None)
        finally:
            postgres.start()

    asyncio.run(main())
    store.close()
