"""The whole gateway and real nodes in the process of the test, by a pool that starts none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import joblib
import msgspec
from prometheus_client.parser import text_string_to_metric_families
from sklearn.tree import DecisionTreeRegressor

from autoscaler.pools import Node, NodeState
from serving.config import PredictSettings, ServeConfig
from serving.errors import ServingError
from serving.gateway.app import Gateway
from serving.gateway.control.deployment import NODE_ENTRY
from serving.gateway.state.records import DeploymentInfo, ModelRecord, VersionRecord
from serving.gateway.state.store import SqliteStore
from serving.latency_histograms import NODE_PHASES, LatencyHistograms, as_cells
from serving.names import VersionName
from serving.node.app import ServingNode
from serving.node.gateway_channel import GatewayChannel, GatewayChannelServer
from serving.node.main import NodeArguments
from serving.resources import Model, Version, VersionState
from tests.autoscaler.in_process_pool import InProcessPool, Inside
from tests.bounds import HANG_SECONDS
from tests.http_requests import through

NAME = VersionName("home", "m", "v1")
PATH = f"/v1/{NAME}:predict"


async def serve_model(inside: Inside) -> None:
    """A node without its process; see `serving.node.main`."""
    arguments = msgspec.convert(dict(inside.arguments), NodeArguments)
    settings = PredictSettings(**arguments.settings)
    failures: list[ServingError] = []

    def on_failed(error: ServingError) -> None:
        failures.append(error)
        inside.report({"failed": error.message})
        inside.stopping.set()

    node = ServingNode(
        arguments.make_load_spec(settings.threads),
        settings,
        marks=inside.shared.marks,
        histograms=LatencyHistograms(len(NODE_PHASES), as_cells(inside.shared.counters)),
        waking=arguments.waking,
        on_ready=lambda ready: inside.report({"ready": ready.to_dict()}),
        on_failed=on_failed,
    )
    channels = GatewayChannelServer(
        lambda: node.predictor,
        slots=len(inside.shared.marks),
        max_body_bytes=settings.max_body_bytes,
        drain_seconds=1.0,
    )
    loop = asyncio.get_running_loop()
    server = await loop.create_unix_server(lambda: GatewayChannel(channels), sock=inside.listener)
    node.start()
    try:
        await inside.stopping.wait()
    finally:
        server.close()
        for channel in tuple(channels.channels):
            channel.abort()
        node.stop()


@dataclass
class World:
    client: httpx.AsyncClient
    pool: InProcessPool

    @property
    def node(self) -> Node:
        (node,) = self.pool.nodes(str(NAME))
        return node

    async def scrape(self, name: str, **labels: str) -> float:
        """The value of a metric of the version."""
        text = (await self.client.get("/metrics")).text
        (value,) = [
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        return value

    async def predict(self, *rows: list[float]) -> httpx.Response:
        return await self.client.post(PATH, json={"instances": list(rows)})


def run(folder: Path, main: Callable[[World], Awaitable[None]], **settings: Any) -> None:
    """A gateway with one version, which is asleep."""
    model = folder / "model"
    model.mkdir()
    joblib.dump(DecisionTreeRegressor().fit([[0.0], [1.0]], [1.0, 3.0]), model / "model.joblib")
    config = ServeConfig(state_dir=folder, default_project="home", **settings)
    pools: list[InProcessPool] = []

    def create_pool(config: ServeConfig, listener: Any, on_line: Any, supervisor: Any) -> InProcessPool:
        pools.append(InProcessPool(listener, {NODE_ENTRY: serve_model}))
        return pools[0]

    def fill(draft: Any, _: Any) -> None:
        draft.put(ModelRecord(name=NAME.parent, model=Model(name=str(NAME.parent)), default="v1"))
        version = Version(name=str(NAME), state=VersionState.READY)
        deployed = DeploymentInfo(model_dir=str(model), framework="SCIKIT_LEARN")
        draft.put(VersionRecord(name=NAME, uid=str(NAME), version=version, deployed=deployed))

    async def bounded() -> None:
        store = SqliteStore(folder / "state.db")
        gateway = Gateway(config, store, {}, create_pool=create_pool)
        async with asyncio.timeout(HANG_SECONDS), gateway._lifespan(gateway._router):
            await gateway._catalog.change(fill)
            transport = httpx.ASGITransport(through(gateway, gateway.prediction_handler))
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                await main(World(client, pools[0]))

    asyncio.run(bounded())


def test_a_prediction_wakes_a_node_and_is_answered(tmp_path: Path) -> None:
    """What it took is in the metrics, from the counters of the node."""

    async def main(world: World) -> None:
        assert world.pool.nodes(str(NAME)) == []
        answered = await world.predict([2.0], [0.0])
        assert answered.json() == {"predictions": [3.0, 1.0]}
        assert "start" in answered.headers["server-timing"]
        for _ in range(3):
            assert (await world.predict([1.0])).json() == {"predictions": [3.0]}

        assert world.node.state is NodeState.READY
        assert await world.scrape("pilotlight_prediction_phase_seconds_count", phase="infer") == 4
        [version] = (await world.client.get("/nodes")).json()["versions"]
        [node] = version["nodes"]
        assert (version["state"], node["state"], node["pid"]) == ("awake", "ready", None)

    run(tmp_path, main)


def test_a_request_outlives_its_node(tmp_path: Path) -> None:
    """The next node answers, and the counts of both add up."""

    async def main(world: World) -> None:
        await world.predict([1.0])
        first = world.node
        answering = asyncio.create_task(world.predict([2.0]))
        while not first.in_flight:  # noqa: ASYNC110  nothing tells of it
            await asyncio.sleep(0)
        world.pool.kill_hung(first, "It hangs.")

        assert (await answering).json() == {"predictions": [3.0]}
        assert world.node is not first
        assert await world.scrape("pilotlight_predictions_total", code="200") == 2

    run(tmp_path, main)


def test_a_model_that_cannot_be_loaded_is_said_so(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        (tmp_path / "model" / "model.joblib").write_bytes(b"no pickle")
        answered = await world.predict([2.0])
        assert answered.status_code == 503
        assert "No node of" in answered.json()["error"]["message"]
        assert world.pool.nodes(str(NAME)) == []

    run(tmp_path, main)


def test_an_idle_version_goes_back_to_sleep(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        await world.predict([1.0])
        node = world.node
        await node.gone.wait()
        assert (node.crashed, world.pool.nodes(str(NAME))) == (False, [])
        assert (await world.predict([1.0])).json() == {"predictions": [3.0]}

    run(tmp_path, main, idle_timeout=0.2, tick=0.05)
