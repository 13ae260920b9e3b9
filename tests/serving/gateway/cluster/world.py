"""Several whole gateways in this process, on one real database."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import joblib
from sklearn.tree import DecisionTreeRegressor

from serving.config import ServeConfig
from serving.gateway.access.token_store import TokenStore
from serving.gateway.app import Gateway
from serving.gateway.catalog.shared_catalog import SharedCatalog
from serving.gateway.control.deployment import NODE_ENTRY
from serving.gateway.control.work_owner import LeaseTiming
from serving.gateway.state.catalog_state import CatalogState
from serving.gateway.state.shared.postgres_store import PostgresStore
from serving.gateway.state_sharing import StateSharing
from serving.names import ModelName, VersionName
from serving.resources import VersionState
from tests.autoscaler.in_process_pool import InProcessPool
from tests.bounds import HANG_SECONDS
from tests.http_requests import through
from tests.serving.gateway.job_world import FAKE
from tests.serving.gateway.test_in_process_nodes import serve_model

MODELS = "/v1/projects/p/models"
JOBS = "/v1/projects/p/jobs"
USUAL = LeaseTiming()
# Longer than a busy machine lets a living database wait.
SILENCE_SECONDS = 3.0


class Member:
    """A gateway of several, and a client of it."""

    def __init__(
        self,
        address: str,
        folder: Path,
        timing: LeaseTiming,
        *,
        has_access: bool = False,
        **settings: Any,
    ) -> None:
        self.folder = folder
        self._tokens = TokenStore(address) if has_access else None
        self.store = PostgresStore(address, SILENCE_SECONDS)
        self.sharing = StateSharing(self.store, timing)
        self.pools: list[InProcessPool] = []
        self.gateway = Gateway(
            ServeConfig(state_dir=folder, pilots="off", default_project="p", state=address, **settings),
            self.store,
            dict(os.environ),
            job_command=FAKE,
            create_pool=self._create_pool,
            sharing=self.sharing,
            tokens=self._tokens,
        )
        self._running = contextlib.AsyncExitStack()

    def _create_pool(
        self, config: ServeConfig, listener: Any, on_line: Any, supervisor: Any
    ) -> InProcessPool:
        self.pools.append(InProcessPool(listener, {NODE_ENTRY: serve_model}))
        return self.pools[0]

    async def start(self) -> None:
        await self._running.enter_async_context(self.gateway._lifespan(self.gateway._router))
        transport = httpx.ASGITransport(through(self.gateway, self.gateway.prediction_handler))
        client = httpx.AsyncClient(transport=transport, base_url="http://test")
        self.client = await self._running.enter_async_context(client)

    async def stop(self) -> None:
        await self._running.aclose()
        if self._tokens is not None:
            self._tokens.close()

    async def stop_following(self) -> None:
        """Hear no more of the others."""
        await self.sharing._following.stop()

    async def stop_renewing(self) -> None:
        """Be as if frozen: keep what it believes of its lease."""
        await self.gateway._supervisor.loops["lease"].stop()

    @property
    def catalog(self) -> SharedCatalog:
        catalog = self.gateway._catalog
        assert isinstance(catalog, SharedCatalog)
        return catalog

    @property
    def state(self) -> CatalogState:
        return self.catalog.state

    async def send(self, verb: str, path: str, json: Any = None, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.request(verb, path, json=json, headers=named)

    async def call(self, verb: str, path: str, json: Any = None, status: int = 200) -> Any:
        response = await self.send(verb, path, json)
        assert response.status_code == status, response.text
        return response.json()

    async def until_known(self, model: str) -> None:
        await until(lambda: ModelName("p", model) in self.state.models)

    async def until_version(self, name: VersionName, state: VersionState | None) -> None:
        """Until a version is in a state; None: until it is gone."""
        if state is not None:
            await until(
                lambda: name in self.state.versions and self.state.versions[name].version.state is state
            )
            return
        await until(lambda: name not in self.state.versions)

    async def until_round_ends(self, loop: str) -> None:
        """Until a round of a background loop has begun and ended."""
        background = self.gateway._supervisor.loops[loop]
        await until(lambda: background._due is not None)
        begun = background._due
        await until(lambda: background._due != begun)

    async def until_asleep(self, uid: str) -> None:
        await until(lambda: not self.pools[0].nodes(uid))

    async def submit(self, job: str, out: Path, *script: str) -> None:
        """A job whose process does what the script says; see `fake_job`."""
        await asyncio.to_thread(out.mkdir)
        given = {
            "uri": "/model", "dataFormat": "JSON", "inputPaths": [f"/{step}" for step in script],
            "outputPath": str(out), "region": "r",
        }  # fmt: skip
        await self.call("POST", JOBS, {"jobId": job, "predictionInput": given})


async def until(reached: Callable[[], Any]) -> None:
    while not reached():  # noqa: ASYNC110  other processes take part: there is no event for it
        await asyncio.sleep(0.002)


async def find_owner(members: Sequence[Member]) -> tuple[Member, Member]:
    """The one of two that does the work, and the other."""
    await until(lambda: any(member.catalog.owns_work for member in members))
    first, second = sorted(members, key=lambda member: not member.catalog.owns_work)
    assert not second.catalog.owns_work
    return first, second


def write_model(folder: Path) -> Path:
    folder.mkdir()
    joblib.dump(DecisionTreeRegressor().fit([[0.0], [1.0]], [1.0, 3.0]), folder / "model.joblib")
    return folder


def run(
    address: str,
    folder: Path,
    main: Callable[[Member, Member], Awaitable[None]],
    timing: LeaseTiming = USUAL,
    **settings: Any,
) -> None:
    """A test on two gateways from their start to their stop; `settings` are those of both."""

    async def bounded() -> None:
        async with asyncio.timeout(HANG_SECONDS):
            members = [Member(address, folder / name, timing, **settings) for name in "ab"]
            for member in members:
                member.folder.mkdir(exist_ok=True)
                await member.start()
            try:
                await main(*members)
            finally:
                for member in members:
                    await member.stop()

    asyncio.run(bounded())
