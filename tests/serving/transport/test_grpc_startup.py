from __future__ import annotations

import asyncio
import resource
import sys
from typing import Any

import pytest

from serving.config import ServerSettings
from serving.errors import FailedPrecondition
from serving.transport.grpc_startup import bind_grpc_server
from serving.transport.http_server import max_connections_per_port


def opened(port: str) -> tuple[Any, list[str]]:
    """What is opened, and what is announced of it."""
    announced: list[str] = []

    async def main() -> Any:
        settings = ServerSettings(grpc_port=port)
        return bind_grpc_server(settings, "127.0.0.1", None, lambda: None, announced.append)  # type: ignore[arg-type, return-value]

    return asyncio.run(main()), announced


def test_it_is_opened_where_it_is_wanted() -> None:
    """On the port that is announced."""
    assert opened("off") == (None, [])
    server, announced = opened("0")
    assert server is not None
    assert announced[0].startswith("grpc://127.0.0.1:")


def test_both_ports_together_leave_files_for_the_server() -> None:
    """Four fifths of them are for clients, and no port has more connections than it was granted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1000, hard))
    try:
        assert max_connections_per_port(ServerSettings()) == 800
        assert max_connections_per_port(ServerSettings(grpc_port="0")) == 400
        assert max_connections_per_port(ServerSettings(grpc_port="0", max_connections=10)) == 10
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_is_not_installed_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """With how to have it."""
    monkeypatch.setitem(sys.modules, "serving.transport.grpc_server.server", None)
    with pytest.raises(FailedPrecondition, match=r"pip install 'pilotlight\[grpc\]'"):
        opened("0")
