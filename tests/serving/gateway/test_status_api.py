from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from serving.config import ServeConfig
from serving.errors import FailedPrecondition, NotFound
from serving.gateway.api.introspection.status import StatusApi
from serving.gateway.app import Gateway
from serving.gateway.methods import METHODS
from serving.gateway.state.store import SqliteStore
from serving.resources import VersionState
from tests.serving.gateway.world import World, run

PAGE = Path(__file__).parents[3] / "docs" / "api.md"
V1 = "projects/p/models/m/versions/v1"


async def get(world: World, path: str) -> Any:
    """The answer, with the id convertor that the gateway's routes have."""
    status_api = StatusApi(world.status, world.metrics)
    model = "/why/projects/{project:id}/models/{model:id}"
    app = Starlette(
        routes=[
            Route("/metrics", status_api.get_metrics),
            Route("/nodes", status_api.list_nodes),
            Route(model, status_api.explain_model),
            Route(model + "/versions/{version:id}", status_api.explain_version),
        ]
    )
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        response = await client.get(path)
    assert response.status_code == 200
    return response.json() if response.headers["content-type"] == "application/json" else response


async def condition(world: World) -> dict[str, Any]:
    """What /nodes tells of the one version there is."""
    (version,) = (await get(world, "/nodes"))["versions"]
    found: dict[str, Any] = version
    return found


def test_every_path_beside_the_api_is_on_the_page(tmp_path: Path) -> None:
    """Those of the routes, and no others."""
    gateway = Gateway(ServeConfig(state_dir=tmp_path), SqliteStore(tmp_path / "state.db"), {})
    offered = {
        re.sub(r"\{(\w)\w*:id\}", lambda match: match[1].upper(), route.path)
        for route in gateway._build_api_routes()
        if route.name.startswith("pilotlight.") and "GET" in (route.methods or ())
    }

    paths = re.findall(r"^\| (`[A-Z]+ /.*?) \|", PAGE.read_text(), re.MULTILINE)
    assert offered == set(re.findall(r"`GET (/\S*)`", " ".join(paths)))


def test_every_method_of_other_protocols_is_on_their_page() -> None:
    """By its name in gRPC."""
    page = (PAGE.parent / "protocols.md").read_text()
    missing = [name for name, one in METHODS.items() if one.is_foreign and name.split(".")[-1] not in page]

    assert missing == []


# ---- /nodes


def test_nodes_and_what_they_take() -> None:
    """A version with a node that works and one that starts, the pilot, and this process."""

    async def main(world: World) -> None:
        spec = world.add("m/v1")
        await world.ask(spec)
        world.pool.ready(world.pool.nodes("m/v1")[0], total=0.25)
        world.pool.start("m/v1")
        await world.ask(spec)
        told = await get(world, "/nodes")

        assert told.keys() == {"versions", "pilots", "gateway"}
        (version,) = told["versions"]
        first, second = version.pop("nodes")
        for process in (first, second, *told["pilots"], told["gateway"]):
            assert process.pop("pid") == os.getpid()
            assert process.pop("proportionalBytes") >= process.pop("privateBytes") > 1 << 20
        assert first.pop("ageSeconds") >= second.pop("ageSeconds") >= 0
        assert first == {"id": "1", "state": "ready", "forked": True, "inFlight": 1}
        assert second == {"id": "2", "state": "starting", "forked": True, "inFlight": 0}
        assert version.pop("nodeSeconds") >= 0
        assert version == {
            "version": V1,
            "exact": False,
            "state": "awake",
            "desired": 1,
            "ready": 1,
            "starting": 1,
            "draining": 0,
            "running": 1,
            "queued": 1,
            "idleSeconds": 0.0,
            "wakeups": {"ready": 1},
            "startSeconds": {"forked": 0.25},
            "reason": "1 node: a request waits",
        }
        assert told["pilots"] == [
            {"pilot": "tabular", "state": "lit", "ageSeconds": 60.0, "litSeconds": 2.5, "nodesForked": 3}
        ]
        assert told["gateway"] == {}

    run(main)


def test_the_states_of_a_version() -> None:
    """Asleep, waking, awake; failing once it is no use to wait."""

    async def main(world: World) -> None:
        spec = world.add("m/v1")
        asleep = await condition(world)
        await world.ask(spec)
        waking = await condition(world)
        node = world.pool.ready(world.pool.nodes("m/v1")[0])
        awake = await condition(world)
        assert [found["state"] for found in (asleep, waking, awake)] == ["asleep", "waking", "awake"]
        assert (asleep["nodes"], asleep["idleSeconds"] >= 0) == ([], True)
        assert (waking["queued"], waking["running"]) == (1, 0)

        world.pool.end(node)
        world.pool.end(world.pool.start("m/v1"), "The model is cut off.")
        failing = await condition(world)
        assert failing["state"] == "failing"
        assert failing["reason"] == "The model is cut off."

    run(main)


def test_processes_that_are_not_there_have_no_memory() -> None:
    """A node whose process is still to come, a pilot that failed; the reason is told."""

    async def main(world: World) -> None:
        world.add("m/v1")
        world.pool.start("m/v1").pid = None
        world.pool.fail_pilot("It has 2 threads and must not fork.")
        told = await get(world, "/nodes")

        (node,) = told["versions"][0]["nodes"]
        assert (node["pid"], node["privateBytes"], node["proportionalBytes"]) == (None, 0, 0)
        (pilot,) = told["pilots"]
        assert (pilot["state"], pilot["pid"], pilot["proportionalBytes"]) == ("failed", None, 0)
        assert pilot["reason"] == "It has 2 threads and must not fork."
        assert pilot["ageSeconds"] is pilot["litSeconds"] is None

    run(main)


# ---- /why


def test_the_story_of_a_version() -> None:
    """What was decided, what was refused, how long starts took; a model has that of its default version."""

    async def main(world: World) -> None:
        spec = world.add("m/v1")
        world.add("m/v2")
        await world.ask(spec)
        await world.ask(spec)
        await world.ask(spec)
        waking = await get(world, f"/why/{V1}")
        world.pool.ready(world.pool.nodes("m/v1")[0], total=0.25)
        story = await get(world, f"/why/{V1}")
        of_model = await get(world, "/why/projects/p/models/m")

        assert waking["summary"] == "It wakes up. Nodes: 1 starting. Requests: 0 running, 1 waiting."
        assert story["summary"] == "It is awake. Nodes: 1 ready. Requests: 1 running, 0 waiting."
        assert (story["version"], story["state"], story["desired"]) == (V1, "awake", 1)
        assert story["reason"] == "1 node: a request waits"
        assert story["startSeconds"] == {"forked": 0.25}
        assert story["starts"] == [{"how": "forked", "seconds": 0.25}]
        (decision,) = story["decisions"]
        (refusal,) = story["refusals"]
        for event in (decision, refusal):
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", event.pop("time"))
        assert decision == {"nodes": 1, "reason": "1 node: a request waits"}
        assert refusal == {"count": 2, "reason": "too many requests waited: queue_requests = 1"}
        assert "failures" not in story
        assert of_model["version"] == V1

    run(main)


def test_a_version_that_cannot_start_tells_why_and_when_it_is_tried_again() -> None:
    """In seconds from now."""

    async def main(world: World) -> None:
        world.add("m/v1")
        world.pool.end(world.pool.start("m/v1"), "The model is cut off.")
        story = await get(world, f"/why/{V1}")

        assert story["state"] == "failing"
        assert story["summary"].startswith("Its nodes cannot be started. Idle for ")
        assert 0 < story["failures"].pop("nextTrySeconds") <= 60
        assert story["failures"] == {"count": 1, "reason": "The model is cut off."}
        assert story["decisions"][0]["reason"] == "node 1 is lost: The model is cut off."

    run(main)


def test_a_sleeping_version_says_so() -> None:
    """And for how long it has been idle."""

    async def main(world: World) -> None:
        world.add("m/v1")
        story = await get(world, f"/why/{V1}")

        assert re.fullmatch(
            r"It is asleep: it has no node, and gets one with the next request\. "
            r"Idle for \d+ s\.",
            story["summary"],
        )
        assert (story["starts"], story["startSeconds"]) == ([], {})

    run(main)


def test_a_version_that_is_not_served_tells_its_state() -> None:
    """It is neither in /nodes."""

    async def main(world: World) -> None:
        world.add("m/v1", tracked=False, state=VersionState.FAILED, error_message="No such file.")

        assert await get(world, f"/why/{V1}") == {
            "version": V1,
            "state": "failed",
            "summary": "It has no nodes, for it is FAILED. No such file.",
        }
        assert (await get(world, "/nodes"))["versions"] == []

    run(main)


def test_what_there_is_not() -> None:
    """A model or version of that name, or a default version."""

    async def main(world: World) -> None:
        world.add("m/v1")
        world.empty_model("empty")
        for path, error in (
            ("m/versions/v2", NotFound),
            ("other/versions/v1", NotFound),
            ("other", NotFound),
            ("empty", FailedPrecondition),
        ):
            with pytest.raises(error, match=r"other|v2|empty"):
                await get(world, f"/why/projects/p/models/{path}")

    run(main)
