"""What other people's clients are told of models and of the server, over HTTP and without a node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.config import ServeConfig
from serving.errors import InvalidArgument
from serving.gateway.app import Gateway
from serving.gateway.state.records import DeploymentInfo, ModelRecord, VersionRecord
from serving.gateway.state.store import SqliteStore
from serving.model_schema import ModelSchema, ModelSignature, TensorSpec, pack_schema
from serving.names import ModelName, VersionName
from serving.protocols.triton_extensions import EXTENSIONS
from serving.resources import Model, Version, VersionState
from tests.bounds import HANG_SECONDS
from tests.http_requests import through

SCHEMA = ModelSchema(
    "tensorflow_savedmodel",
    {
        "serving_default": ModelSignature(
            (TensorSpec("x", "FP32", (-1, 2), "x:0"),), (TensorSpec("y", "INT64", (-1,)),)
        )
    },
)
STATES = {
    "v1": VersionState.READY,
    "v2": VersionState.CREATING,
    "v_3": VersionState.FAILED,
    "old": VersionState.READY,
}


def version(model: str, one: str, state: VersionState) -> VersionRecord:
    name = VersionName("home", model, one)
    error = "Failed to load model: broken." if state is VersionState.FAILED else ""
    labels = {"canary": "on"} if one == "v2" else {}
    return VersionRecord(
        name=name,
        uid=str(name),
        version=Version(name=str(name), state=state, error_message=error, labels=labels),
        deployed=DeploymentInfo(model_dir="/nowhere", schema="" if one == "old" else pack_schema(SCHEMA)),
    )


def run(folder: Path, main: Callable[[httpx.AsyncClient], Awaitable[None]]) -> None:
    """A gateway with a model `m` of some versions, and a model `empty`."""

    async def bounded() -> None:
        store = SqliteStore(folder / "state.db")
        config = ServeConfig(state_dir=folder, pilots="off", default_project="home")
        gateway = Gateway(config, store, {})
        async with asyncio.timeout(HANG_SECONDS), gateway._lifespan(gateway._router):

            def fill(draft: Any, _: Any) -> None:
                for name, default in (("m", "v1"), ("empty", "")):
                    full = ModelName("home", name)
                    draft.put(ModelRecord(name=full, model=Model(name=str(full)), default=default))
                for one, state in STATES.items():
                    draft.put(version("m", one, state))

            await gateway._catalog.change(fill)
            transport = httpx.ASGITransport(through(gateway, gateway.prediction_handler))
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                await main(client)

    asyncio.run(bounded())


def test_a_server(tmp_path: Path) -> None:
    """It lives, it is ready, and says what it is."""

    async def main(client: httpx.AsyncClient) -> None:
        assert (await client.get("/v2/health/live")).json() == {"live": True}
        assert (await client.get("/v2/health/ready")).json() == {"ready": True}
        told = (await client.get("/v2")).json()
        assert (told["name"], told["extensions"]) == ("pilotlight", ["binary_tensor_data", *EXTENSIONS])

    run(tmp_path, main)


def test_states_of_a_model(tmp_path: Path) -> None:
    """Of all its versions, or of the one that is named by id, number or label; nothing wakes."""

    async def main(client: httpx.AsyncClient) -> None:
        async def states(path: str) -> list[tuple[str, str, str]]:
            answer = await client.get(f"/v1/models/{path}")
            assert answer.status_code == 200, answer.text
            return [
                (one["version"], one["state"], one["status"]["error_message"])
                for one in answer.json()["model_version_status"]
            ]

        failed = ("3", "END", "Failed to load model: broken.")
        every = [failed, ("2", "LOADING", ""), ("1", "AVAILABLE", ""), ("old", "AVAILABLE", "")]
        assert await states("m") == every
        assert await states("m/versions/3") == await states("m/versions/v_3") == [failed]
        assert await states("m/labels/canary") == [("2", "LOADING", "")]

    run(tmp_path, main)


def test_signatures_of_a_model(tmp_path: Path) -> None:
    """Of its default version, or of one that is named."""

    async def main(client: httpx.AsyncClient) -> None:
        for path in ("m", "m/versions/1", "m/labels/v1"):
            told = (await client.get(f"/v1/models/{path}/metadata")).json()
            assert told["model_spec"] == {"name": "m", "signature_name": "", "version": "1"}
            assert told["metadata"]["signature_def"]["signature_def"].keys() == {"serving_default"}
        for path in ("m", "projects/home/models/m", "projects%2Fhome%2Fmodels%2Fm"):
            told = (await client.get(f"/v2/models/{path}")).json()
            assert told == {
                "name": "m",
                "versions": ["1", "old"],
                "platform": "tensorflow_savedmodel",
                "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}],
                "outputs": [{"name": "y", "datatype": "INT64", "shape": [-1]}],
            }
        assert (await client.get("/v2/models/m/versions/1")).json()["versions"] == ["1"]

    run(tmp_path, main)


def test_whether_a_model_is_ready(tmp_path: Path) -> None:
    """200 and true, or 503 and false; 404 for what is not there."""

    async def main(client: httpx.AsyncClient) -> None:
        wanted = {
            "m": 200,
            "m/versions/1": 200,
            "m/versions/v2": 503,
            "m/versions/3": 503,
            "empty": 503,
            "projects/home/models/m/versions/1": 200,
        }
        for path, status in wanted.items():
            answer = await client.get(f"/v2/models/{path}/ready")
            assert answer.status_code == status, path
            assert answer.json()["ready"] is (status == 200)

    run(tmp_path, main)


def test_tritons_index_of_models(tmp_path: Path) -> None:
    """Every version with its state; those that are ready, if only these are asked for."""

    async def main(client: httpx.AsyncClient) -> None:
        every = (await client.post("/v2/repository/index")).json()
        assert [(one["name"], one["version"], one["state"], one["reason"]) for one in every] == [
            ("m", "old", "READY", ""),
            ("m", "1", "READY", ""),
            ("m", "2", "LOADING", ""),
            ("m", "3", "UNAVAILABLE", "Failed to load model: broken."),
        ]
        ready = (await client.post("/v2/repository/index", json={"ready": True})).json()
        assert [one["version"] for one in ready] == ["old", "1"]
        assert (await client.post("/v2/repository/index", json={"ready": 1})).status_code == 400
        assert (await client.post("/v2/repository/index", json=[])).status_code == 400

    run(tmp_path, main)


def test_tritons_statistics_and_configuration(tmp_path: Path) -> None:
    """Of a version that was asked nothing all is 0; a configuration has what the metadata has."""

    async def main(client: httpx.AsyncClient) -> None:
        for path, versions in (
            ("stats", ["old", "1", "2", "3"]),
            ("m/stats", ["old", "1", "2", "3"]),
            ("m/versions/1/stats", ["1"]),
            ("projects/home/models/m/versions/v1/stats", ["1"]),
        ):
            told = (await client.get(f"/v2/models/{path}")).json()["model_stats"]
            assert [one["version"] for one in told] == versions
            assert {one["inference_count"] for one in told} == {0}
            assert told[0]["inference_stats"]["success"] == {"count": 0, "ns": 0}
        assert (await client.get("/v2/models/m/config")).json() == {
            "name": "m",
            "platform": "tensorflow_savedmodel",
            "max_batch_size": 0,
            "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 2]}],
            "output": [{"name": "y", "data_type": "TYPE_INT64", "dims": [-1]}],
        }

    run(tmp_path, main)


@pytest.mark.parametrize(
    ("method", "path", "status", "says"),
    [
        ("GET", "/v1/models/none", 404, "Servable not found for request: Latest(none)"),
        ("GET", "/v1/models/m/versions/9", 404, "Servable not found for request: Specific(m, 9)"),
        ("GET", "/v1/models/m/labels/x/metadata", 400, "Unrecognized servable version label: x"),
        ("POST", "/v1/models/m/labels/x:predict", 400, "Unrecognized servable version label: x"),
        ("GET", "/v1/models/empty", 404, "Could not find any versions of model projects/home/models/empty"),
        ("GET", "/v1/models/m/versions/3/metadata", 400, "is FAILED. Failed to load model: broken."),
        ("GET", "/v2/models/none/ready", 404, "there is no model projects/home/models/none."),
        ("GET", "/v2/models/projects/other/models/m", 404, "there is no model projects/other/models/m."),
        ("GET", "/v2/nothing", 404, "Nothing is at /v2/nothing."),
        ("GET", "/v1/models/m:predict", 400, "Malformed request: GET /v1/models/m:predict"),
        ("POST", "/v1/models/m", 400, "Malformed request: POST /v1/models/m"),
        ("POST", "/v1/models/m/version/5:regress", 400, "Malformed request: POST"),
        ("GET", "/v1/models", 400, "Missing model name"),
        ("POST", "/v1/models/m/versions/9223372036854775808:predict", 400, "Failed to convert version"),
        ("POST", "/v1/models/none:predict", 404, "Servable not found for request: Latest(none)"),
        ("POST", "/v1/models/m/versions/9:classify", 404, "Specific(m, 9)"),
        ("POST", "/v2/models/m/versions/3/infer", 400, "is FAILED"),
        ("POST", "/v2/models/empty/infer", 400, "has no default version"),
        ("POST", "/v2/models/m/infer", 405, ""),
        ("POST", "/v2/repository/models/m/load", 404, "Models are not loaded and unloaded by hand here"),
        ("POST", "/v2/repository/models/m/unload", 404, "wakes with its first request"),
        ("GET", "/v2/models/none/stats", 404, "there is no model projects/home/models/none."),
    ],
)
def test_errors_are_in_the_form_of_the_protocol(
    tmp_path: Path, method: str, path: str, status: int, says: str
) -> None:
    """A text under `error`, whoever found it."""

    async def main(client: httpx.AsyncClient) -> None:
        if status == 405 and not says:  # a wrong verb where only POST is
            answer = await client.get(path)
        else:
            answer = await client.request(method, path, content=b"{}")
        assert answer.status_code == status, answer.text
        assert answer.json().keys() == {"error"}
        assert says in answer.json()["error"]
        assert answer.headers["x-request-id"]

    run(tmp_path, main)


def test_a_default_project_that_cannot_be_is_refused(tmp_path: Path) -> None:
    """At the start."""
    config = ServeConfig(state_dir=tmp_path, default_project="a/b")
    with pytest.raises(InvalidArgument, match="Invalid project id 'a/b'"):
        Gateway(config, SqliteStore(tmp_path / "state.db"), {})
