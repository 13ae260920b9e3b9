"""The application as a whole, where no test of its parts sees it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.gateway.api.jobs import JobsApi
from tests.serving.gateway.test_job_api import JOBS, Api, run


def test_an_unexpected_error_says_that_the_connection_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server closes it, and a client that did not know would lose its next request."""

    async def fail(*_: Any) -> None:
        raise ValueError("unexpected")

    async def main(api: Api) -> None:
        transport = httpx.ASGITransport(api.gateway._router, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            response = await client.get(f"{JOBS}/j")

        assert (response.status_code, response.headers["connection"]) == (500, "close")
        assert response.json()["error"]["message"] == "Internal error encountered."

    monkeypatch.setattr(JobsApi, "get", fail)
    run(tmp_path, main)
