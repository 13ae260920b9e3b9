"""Tokens from a store that stands still, as a database does whose machine does."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from serving.gateway.access import access_control
from serving.gateway.access.access_control import AccessControl
from serving.gateway.access.policy import ADMIN
from serving.gateway.access.token_store import TokenStore
from serving.gateway.access.tokens import TokenRecord, mint_token
from tests.bounds import HANG_SECONDS


class SlowStore(TokenStore):
    """It answers once it is told to; `looks` counts how often it was asked."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.is_answering = threading.Event()
        self.looks = 0

    def load_if_changed(self) -> Sequence[TokenRecord] | None:
        self.looks += 1
        found = super().load_if_changed()
        assert self.is_answering.wait(HANG_SECONDS)
        return found


def test_a_look_for_tokens_that_takes_long_is_given_up_and_counts_when_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The loop would make the server unready. But what the look has found is not found again."""
    monkeypatch.setattr(access_control, "_REFRESH_TIMEOUT", 0.01)
    caplog.set_level(logging.WARNING)

    async def main() -> None:
        store = SlowStore(tmp_path / "state.db")
        access = AccessControl(store)
        token, record = mint_token(ADMIN.principal, 0.0)
        store.put(record)
        await access._refresh_or_keep_tokens()
        assert "could not be read within 0.01 s. Keeping the tokens read before." in caplog.text

        store.is_answering.set()
        await access.refresh_tokens()
        assert access.resolve_caller(b"Bearer " + token.encode()) == ADMIN
        access.close()

    asyncio.run(main())


def test_who_asks_for_tokens_at_the_same_time_shares_a_look(tmp_path: Path) -> None:
    """Anybody who signs in to the console has one taken, and revoked tokens would wait for all of them."""

    async def main() -> None:
        store = SlowStore(tmp_path / "state.db")
        access = AccessControl(store)
        asking = [asyncio.create_task(access.refresh_tokens()) for _ in range(50)]
        while not store.looks:  # noqa: ASYNC110  a thread counts
            await asyncio.sleep(0.001)
        asking += [asyncio.create_task(access.refresh_tokens()) for _ in range(50)]
        await asyncio.sleep(0)
        store.is_answering.set()
        await asyncio.gather(*asking)
        assert store.looks == 2
        access.close()

    asyncio.run(main())
