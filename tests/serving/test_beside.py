from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from serving.beside import open_grpc
from serving.config import FrontSettings
from serving.errors import FailedPrecondition


def opened(port: str) -> tuple[Any, list[str]]:
    """What is opened, and what is announced of it."""
    announced: list[str] = []

    async def main() -> Any:
        settings = FrontSettings(grpc_port=port)
        return open_grpc(settings, "127.0.0.1", None, lambda: None, announced.append)  # type: ignore[arg-type, return-value]

    return asyncio.run(main()), announced


def test_it_is_opened_where_it_is_wanted() -> None:
    """On the port that is announced."""
    assert opened("off") == (None, [])
    server, announced = opened("0")
    assert server is not None
    assert announced[0].startswith("grpc://127.0.0.1:")


def test_what_is_not_installed_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """With how to have it."""
    monkeypatch.setitem(sys.modules, "serving.grpc.server", None)
    with pytest.raises(FailedPrecondition, match=r"pip install 'pilotlight\[grpc\]'"):
        opened("0")
