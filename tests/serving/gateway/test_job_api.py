"""The methods on jobs, on the whole gateway in this process; a job's process does what the test says."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.config import ServeConfig
from serving.errors import InvalidArgument
from serving.gateway.app import Gateway
from serving.gateway.catalog import models, versions
from serving.gateway.state.records import DeploymentInfo
from serving.gateway.state.store import SqliteStore
from serving.names import ModelName, VersionName
from serving.resources import Model, Version
from tests.bounds import HANG_SECONDS
from tests.serving.gateway.job_world import FAKE, alive

JOBS = "/v1/projects/p/jobs"


class Api:
    """A gateway and a client of it."""

    def __init__(self, folder: Path, gateway: Gateway, client: httpx.AsyncClient) -> None:
        self.folder = folder
        self.gateway = gateway
        self.client = client

    async def call(self, verb: str, path: str, status: int = 200, **details: Any) -> Any:
        response = await self.client.request(verb, path, **details)
        assert response.status_code == status, response.text
        return response.json()

    def body(self, job: str, *script: str, **fields: Any) -> dict[str, Any]:
        """A job whose process does what the script says; a field that is None goes."""
        out = self.folder / "out" / job
        out.mkdir(parents=True, exist_ok=True)
        given = {
            "uri": "/model", "dataFormat": "JSON", "inputPaths": [f"/{step}" for step in script] or ["/run"],
            "outputPath": str(out), "region": "us-central1", **fields.pop("input", {}),
        }  # fmt: skip
        given = {key: value for key, value in given.items() if value is not None}
        return {"jobId": job, "predictionInput": given, **fields}

    async def create(self, job: str, *script: str, status: int = 200, **fields: Any) -> Any:
        return await self.call("POST", JOBS, status, json=self.body(job, *script, **fields))

    async def job(self, job: str) -> Any:
        return await self.call("GET", f"{JOBS}/{job}")

    async def live(self, job: str) -> Any:
        return await self.call("GET", f"/jobs/projects/p/jobs/{job}")

    async def until(self, job: str, state: str) -> Any:
        return await self.once(lambda: self.job(job), lambda found: found["state"] == state)

    async def once(self, ask: Callable[[], Awaitable[Any]], reached: Callable[[Any], bool]) -> Any:
        """The first answer that is as it is waited for."""
        while not reached(found := await ask()):  # noqa: ASYNC110  another process takes part
            await asyncio.sleep(0.01)
        return found

    def go(self, job: str) -> None:
        (self.folder / "out" / job / "go").touch()


def run(folder: Path, main: Callable[[Api], Awaitable[None]], **settings: Any) -> None:
    """A test on a gateway from its start to its stop."""

    async def bounded() -> None:
        (folder / "state").mkdir(exist_ok=True)
        config = ServeConfig(state_dir=folder / "state", pilots="off", **settings)
        store = SqliteStore(folder / "state" / "state.db")
        gateway = Gateway(config, store, dict(os.environ), job_command=FAKE)
        router = gateway._router
        transport = httpx.ASGITransport(router)
        async with (
            asyncio.timeout(HANG_SECONDS),
            router.router.lifespan_context(router),
            httpx.AsyncClient(transport=transport, base_url="http://test") as client,
        ):
            await main(Api(folder, gateway, client))

    asyncio.run(bounded())


def test_null_in_quotes_is_nothing(tmp_path: Path) -> None:
    """A part of a job that is the text "null" counts as left out."""

    async def main(api: Api) -> None:
        await api.call("POST", JOBS, 400, json={"jobId": "i", "predictionInput": "null"})
        assert "batchOptions" not in await api.create("j", "run", batchOptions="null")

    run(tmp_path, main)


def test_a_job_as_clients_see_it(tmp_path: Path) -> None:
    """From its creation to its end, and what it was given never changes."""

    async def main(api: Api) -> None:
        sent = api.body(
            "j", "run", "count/9/1", "wait/go", labels={"team": "ads"}, batchOptions={"keys": ["id"]}
        )
        sent["predictionInput"] |= {"batchSize": 5, "maxWorkerCount": "3"}
        created = await api.call("POST", JOBS, json=sent)
        assert (created["jobId"], created["state"], created["jobPosition"]) == ("j", "QUEUED", "1")

        running = await api.until("j", "RUNNING")
        assert "jobPosition" not in running
        await api.once(
            lambda: api.job("j"), lambda job: job["predictionOutput"].get("predictionCount") == "9"
        )
        api.go("j")
        ended = await api.until("j", "SUCCEEDED")

        for shown in (created, running, ended):
            assert shown.items() >= sent.items()
        assert ended["predictionOutput"] == {
            "outputPath": sent["predictionInput"]["outputPath"],
            "predictionCount": "9",
            "errorCount": "1",
            "nodeHours": 0.01,
        }
        assert ended["createTime"] <= ended["startTime"] <= ended["endTime"]
        assert (await api.call("GET", "/stats"))["jobs"] == {"SUCCEEDED": 1}

    run(tmp_path, main)


def test_what_is_refused(tmp_path: Path) -> None:
    """In Google's form, naming the field; nothing is queued."""

    async def main(api: Api) -> None:
        await api.create("taken")
        for body, status, field in (
            (api.body("a", trainingInput={"region": "r"}), 400, "job"),
            ({"jobId": "a"}, 400, "job"),
            ({"jobId": "a", "training_input": {}}, 400, "training_input.region"),
            (api.body("taken"), 409, "job.job_id"),
            (api.body("a", input={"outputPath": None}), 400, "prediction_input.output_path"),
            (api.body("a", input={"uri": None, "modelName": "projects/p/models/m"}), 404,
             "prediction_input.model_name"),
        ):  # fmt: skip
            error = (await api.call("POST", JOBS, status, json=body))["error"]
            (violation,) = error["details"][0]["fieldViolations"]
            assert violation["field"] == field
        strange: list[Any] = [[], {"predictionInput": []}, {"jobId": "a", "wings": 2}]
        for body in (*strange, api.body("a", input={"wings": 2})):
            error = (await api.call("POST", JOBS, 400, json=body))["error"]
            assert error["message"].startswith("Invalid")
        await api.call("GET", f"{JOBS}/a", 404)
        await api.call("POST", f"{JOBS}/a:cancel", 404)
        await api.call("GET", "/jobs/projects/p/jobs/a", 404)

    run(tmp_path, main)


def test_the_text_that_airflow_knows(tmp_path: Path) -> None:
    """It takes a job that is there for its own if the input is the same."""

    async def main(api: Api) -> None:
        body = api.body("j", "wait/go")
        await api.call("POST", JOBS, json=body)
        error = (await api.call("POST", JOBS, 409, json=body))["error"]

        assert error["details"][0]["fieldViolations"] == [
            {"field": "job.job_id", "description": "A job with this id already exists."}
        ]
        assert (await api.job("j"))["predictionInput"] == body["predictionInput"]

    run(tmp_path, main)


def test_only_a_tuning_job_has_parameters_that_matter(tmp_path: Path) -> None:
    async def main(api: Api) -> None:
        await api.create("j", "wait/go")
        refused = await api.call("GET", "/jobs/projects/p/jobs/j/importance", 400)
        assert refused["error"]["message"] == "j has no trials."
        await api.call("GET", "/jobs/projects/p/jobs/none/importance", 404)

    run(tmp_path, main)


def test_lists(tmp_path: Path) -> None:
    """Empty ones are {}; else newest first, in pages, filtered by any field."""

    async def main(api: Api) -> None:
        assert await api.call("GET", JOBS) == {}
        for job in ("b", "c", "a"):
            await api.create(job, "wait/go", labels={"kind": job})
        await api.until("b", "PREPARING")

        async def ids(**query: Any) -> list[str]:
            found = await api.call("GET", JOBS, params=query)
            return [job["jobId"] for job in found.get("jobs", [])]

        assert await ids() == ["a", "c", "b"]
        assert await ids(filter="state:QUEUED") == ["a", "c"]
        assert await ids(filter="jobId:b OR labels.kind=a") == ["a", "b"]
        assert await ids(filter="state=SUCCEEDED") == []
        assert await ids(filter="state:QUEUED OR state:RUNNING", pageSize=1) == ["a"]
        first = await api.call("GET", JOBS, params={"pageSize": 2})
        assert [job.get("jobPosition") for job in first["jobs"]] == ["2", "1"]
        assert await ids(pageSize=2, pageToken=first["nextPageToken"]) == ["b"]
        assert await api.call("GET", "/v1/projects/q/jobs") == {}

    run(tmp_path, main, jobs=1)


def test_labels_are_patched(tmp_path: Path) -> None:
    """The answer is the job, not an operation."""

    async def main(api: Api) -> None:
        created = await api.create("j", "wait/go")
        body = {"labels": {"team": "roses"}, "etag": created["etag"]}
        patched = await api.call("PATCH", f"{JOBS}/j", params={"updateMask": "labels"}, json=body)

        assert (patched["jobId"], patched["labels"]) == ("j", {"team": "roses"})
        await api.call("PATCH", f"{JOBS}/j", 409, params={"updateMask": "labels"}, json=body)
        await api.call("PATCH", f"{JOBS}/j", 400, params={"updateMask": "predictionInput"}, json={})

    run(tmp_path, main)


def test_a_cancel(tmp_path: Path) -> None:
    """It answers {} at once; when the job has ended, 400, as Airflow expects."""

    async def main(api: Api) -> None:
        await api.create("j", "run", "wait/go")
        await api.until("j", "RUNNING")
        assert await api.call("POST", f"{JOBS}/j:cancel", json={}) == {}
        await api.until("j", "CANCELLED")

        error = (await api.call("POST", f"{JOBS}/j:cancel", 400, json={}))["error"]
        assert error["status"] == "FAILED_PRECONDITION"

    run(tmp_path, main)


def test_the_queue_is_full(tmp_path: Path) -> None:
    """429, on which clients back off."""

    async def main(api: Api) -> None:
        await api.create("a", "wait/go")
        error = (await api.create("b", status=429))["error"]

        assert "queue_jobs" in error["message"]

    run(tmp_path, main, queue_jobs=1)


def test_how_far_a_job_is(tmp_path: Path) -> None:
    """Numbers are numbers here; when the job has ended, its log is still there."""

    async def main(api: Api) -> None:
        await api.create("j", "log/hello", "run", "count/30/5", "wait/go")
        told = await api.once(lambda: api.live("j"), lambda told: told["predictions"] == 30)

        rates = {"recordsPerSecond", "secondsLeft"}
        assert {key: value for key, value in told.items() if key not in rates} == {
            "state": "RUNNING", "phase": "RUNNING", "attempt": 1, "predictions": 30, "errors": 5,
            "bytes": 30, "bytesTotal": 100, "workers": 2, "log": ["hello"], "waitReason": "",
        }  # fmt: skip
        told = await api.once(lambda: api.live("j"), lambda told: told["recordsPerSecond"] is not None)
        assert told["recordsPerSecond"] == 0
        assert told["secondsLeft"] is None
        api.go("j")
        await api.until("j", "SUCCEEDED")

        told = await api.live("j")
        assert (told["state"], told["phase"], told["predictions"]) == ("SUCCEEDED", "", 30)
        assert told["log"] == ["hello"]

    run(tmp_path, main)


def test_a_version_that_is_deleted_while_a_job_uses_it(tmp_path: Path) -> None:
    """The job fails by itself, and says so."""

    async def main(api: Api) -> None:
        catalog, name = api.gateway._catalog, ModelName("p", "m")
        await catalog.change(models.create_model, "p", Model(name="m"))
        version = Version(name="v", deployment_uri="gs://b/m")
        operation = await catalog.change(versions.create_version, name, version)
        await catalog.change(versions.complete_create, operation.name, DeploymentInfo(model_dir="/x"), ())
        await api.create("j", "run", "wait/go", input={"uri": None, "modelName": str(name)})
        await api.until("j", "RUNNING")
        await api.call("DELETE", f"/v1/{VersionName('p', 'm', 'v')}")

        failed = await api.until("j", "FAILED")
        assert "was deleted while the job was using it" in failed["errorMessage"]

    run(tmp_path, main)


def test_a_restart_of_the_server(tmp_path: Path) -> None:
    """No process outlives it; the job starts again, and what it was given is the same."""
    pids: list[int] = []
    seen: list[Any] = []

    async def before(api: Api) -> None:
        await api.create("j", "run", "wait/go", batchOptions={"maxErrors": 3})
        seen.append(await api.until("j", "RUNNING"))
        pids.append(int((tmp_path / "out" / "j" / "started.1").read_text()))

    async def after(api: Api) -> None:
        assert not alive(pids[0])
        again = await api.until("j", "RUNNING")
        assert again == seen[0]
        await api.once(lambda: api.live("j"), lambda told: told["attempt"] == 2)
        api.go("j")
        await api.until("j", "SUCCEEDED")

    run(tmp_path, before)
    run(tmp_path, after)


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("prediction_input.input_paths", {"input": {"inputPaths": ["{open}/a", "{state}/admin-token"]}}),
        ("prediction_input.input_paths", {"input": {"inputPaths": ["{state}/*"]}}),
        ("prediction_input.input_paths", {"input": {"inputPaths": ["/etc/hostname"]}}),
        ("prediction_input.output_path", {"input": {"outputPath": "{state}/out"}}),
        ("prediction_input.output_path", {"input": {"outputPath": "{open}/../out"}}),
        ("prediction_input.output_path", {"input": {"outputPath": "{open}/taken"}}),
        ("prediction_input.uri", {"input": {"uri": "{state}/versions/1/model"}}),
        ("batch_options.pipeline_options", {"batchOptions": {"pipelineOptions": ["--sdk_location=/x"]}}),
        ("batch_options.runner", {"batchOptions": {"runner": "FlinkRunner"}}),
    ],
)
def test_what_the_settings_do_not_let_a_job_have(tmp_path: Path, field: str, changes: dict[str, Any]) -> None:
    """It is refused at once, with its field and the setting; no job is left behind."""
    (tmp_path / "open" / "taken").mkdir(parents=True)
    (tmp_path / "open" / "taken" / ".pilotlight").symlink_to(tmp_path / "state")
    here: dict[str, Any] = {"inputPaths": ["{open}/in"], "outputPath": "{open}/out", "uri": "{open}/model"}

    async def main(api: Api) -> None:
        body = api.body("j", **{**changes, "input": here | changes.get("input", {})})
        text = json.dumps(body).replace("{open}", f"{tmp_path}/open").replace("{state}", f"{tmp_path}/state")
        told = await api.call("POST", JOBS, 400, json=json.loads(text))

        assert f"Field: {field} " in told["error"]["message"]
        assert re.search("setting|local_folders", told["error"]["message"])
        assert await api.call("GET", JOBS) == {}

    run(tmp_path, main, local_folders=f"{tmp_path}/open")


def test_what_the_settings_do_not_let_a_version_have(tmp_path: Path) -> None:
    """A model, packages or a request log in the state folder or outside of the folders that are open."""
    opened = tmp_path / "open"
    opened.mkdir()
    (opened / "link").symlink_to(tmp_path / "state")

    async def main(api: Api) -> None:
        model = "/v1/projects/p/models"
        await api.call("POST", model, json={"name": "m"})
        for changes, field in (
            ({"deploymentUri": f"{tmp_path}/state"}, "deployment_uri"),
            ({"deploymentUri": str(tmp_path)}, "deployment_uri"),
            ({"deploymentUri": f"{opened}/link/versions"}, "deployment_uri"),
            ({"packageUris": [f"{opened}/../a.tar.gz"], "predictionClass": "a.B"}, "package_uris"),
        ):
            version = {"name": "v", "deploymentUri": f"{opened}/model", **changes}
            told = await api.call("POST", f"{model}/m/versions", 400, json=version)
            assert f"Field: version.{field} " in told["error"]["message"]
            assert "local_folders" in told["error"]["message"]
        for address in (f"{tmp_path}/state/logs", f"file://{opened}/link/x", "/elsewhere", "file://relative"):
            body = {"requestLoggingConfig": {"bigqueryTableName": address, "samplingPercentage": 1}}
            for mask in ("requestLoggingConfig", "request_logging_config.bigquery_table_name"):
                path = f"{model}/m/versions/v?updateMask={mask}"
                told = await api.call("PATCH", path, 400, json=body)
                assert "bigquery_table_name" in told["error"]["message"]
                wanted = "no local path" if address == "file://relative" else "local_folders"
                assert wanted in told["error"]["message"]
        await api.call("PATCH", f"{model}/m/versions/v?updateMask=description", 404, json=body)

    run(tmp_path, main, local_folders=str(opened))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"batch_runner": "Flink"}, "batch_runner 'Flink'"),
        ({"batch_options": "'--never closed"}, "batch_options"),
    ],
)
def test_settings_that_cannot_be(tmp_path: Path, settings: dict[str, str], says: str) -> None:
    """The server does not start with them."""
    store = SqliteStore(tmp_path / "state.db")
    with pytest.raises(InvalidArgument, match=says):
        Gateway(ServeConfig(state_dir=tmp_path, **settings), store, {})  # type: ignore[arg-type]
    store.close()
