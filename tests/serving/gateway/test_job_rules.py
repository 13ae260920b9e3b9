"""The rules for jobs, as pure functions on a draft."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch.failures import ErrorLimit
from serving.errors import (
    Aborted,
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    LoadFailed,
    NotFound,
    ResourceExhausted,
    ServingError,
)
from serving.gateway.catalog import jobs, models, versions
from serving.gateway.catalog.job_checks.prediction_checks import PredictionRules, is_error_limit
from serving.gateway.state.catalog_state import CatalogState, StateDraft
from serving.gateway.state.records import ChangeStamp, DeploymentInfo, JobRecord
from serving.names import ModelName, VersionName
from serving.resources import (
    Job,
    JobState,
    Model,
    PredictionOutput,
    Version,
    format_count,
    resource_from_json,
)

PREDICTION = PredictionRules()
START = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
M, V1 = ModelName("p", "m"), VersionName("p", "m", "v1")
INPUT: dict[str, Any] = {
    "modelName": str(M),
    "dataFormat": "JSON",
    "inputPaths": ["gs://b/in/*", "/data/rows.jsonl"],
    "outputPath": "gs://b/out",
    "region": "us-central1",
}
BY_VERSION: dict[str, Any] = {"modelName": None, "versionName": str(V1)}
BY_URI: dict[str, Any] = {"modelName": None, "uri": "gs://b/model"}


def counted(predictions: int = 0, errors: int = 0, **more: float) -> PredictionOutput:
    """What a process has made of INPUT."""
    return PredictionOutput(
        output_path="gs://b/out",
        prediction_count=format_count(predictions),
        error_count=format_count(errors),
        **more,
    )


start_attempt = functools.partial(jobs.start_attempt, output=counted())


class World:
    """A state with one READY version, and a clock that goes on by a second per change."""

    def __init__(self) -> None:
        self.state = CatalogState()
        self.changes = 0
        self.do(models.create_model, "p", Model(name="m"))
        self.version("v1")

    def do(self, rule: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        self.changes += 1
        stamp = ChangeStamp(START + datetime.timedelta(seconds=self.changes), f"{self.changes:016x}")
        draft = StateDraft(self.state)
        answer = rule(draft, stamp, *arguments, **keywords)
        self.state = draft.to_state()
        return answer

    def begin_version(self, name: str) -> str:
        version = Version(name=name, deployment_uri="gs://b/m")
        operation: str = self.do(versions.create_version, M, version).name
        return operation

    def version(self, name: str) -> None:
        self.do(versions.complete_create, self.begin_version(name), DeploymentInfo(model_dir="/x"), ())

    def create(self, job: str, most: int = 1000, body: Any = None, **changes: Any) -> JobRecord:
        """A job with the usual input, some of it changed; None removes."""
        sent = {key: value for key, value in {**INPUT, **changes}.items() if value is not None}
        wire = {"jobId": job, "predictionInput": sent, **(body or {})}
        given = jobs.SentJobFields(wire["predictionInput"] or {}, wire.get("batchOptions", {}))
        record: JobRecord = self.do(
            jobs.create_job, PREDICTION, "p", resource_from_json(Job, wire), sent=given, most=most
        )
        return record

    def job(self, job: str) -> JobRecord:
        return self.state.jobs[jobs.job_name("p", job)]

    def shown(self, job: str) -> dict[str, Any]:
        name = jobs.job_name("p", job)
        return jobs.render_job(self.state.jobs[name], jobs.list_queue_positions(self.state).get(name, 0))

    def on(self, job: str, rule: Callable[..., Any], *arguments: Any, **keywords: Any) -> JobState | None:
        """Apply a rule to a job; returns the state it is in then."""
        record: JobRecord = self.do(rule, jobs.job_name("p", job), *arguments, **keywords)
        assert record == self.job(job)
        return record.job.state


@pytest.fixture
def world() -> World:
    return World()


# ---- creation


def test_a_new_job_is_queued(world: World) -> None:
    """It is shown with what was sent, unchanged, and nothing that goes without saying."""
    options = {"keys": ["id"], "max_errors": 5}
    world.create("first", body={"batchOptions": options}, batchSize=5)
    world.create("second")

    assert world.shown("first") == {
        "jobId": "first",
        "state": "QUEUED",
        "createTime": "2030-01-01T00:00:04Z",
        "etag": "AAAAAAAAAAQ=",
        "jobPosition": "1",
        "predictionInput": {**INPUT, "batchSize": 5},
        "predictionOutput": {"outputPath": "gs://b/out"},
        "batchOptions": options,
    }
    assert world.shown("second")["jobPosition"] == "2"
    assert "batchOptions" not in world.shown("second")


def test_what_only_the_server_says_is_not_taken(world: World) -> None:
    """A job read from another server can be sent as it is."""
    world.create("a", body={"state": "SUCCEEDED", "errorMessage": "x", "endTime": "x", "jobPosition": "9"})

    assert world.shown("a").keys() == {
        *("jobId", "state", "createTime", "etag", "jobPosition", "predictionInput", "predictionOutput")
    }


def test_a_model_stands_for_its_default_version(world: World) -> None:
    """That of the moment; a job with a model of its own has no version."""
    world.version("v2")
    by_model, by_version = world.create("a"), world.create("b", **BY_VERSION)
    world.do(versions.set_default, VersionName("p", "m", "v2"))

    assert by_model.target == by_version.target == V1
    assert by_model.target_uid == world.state.versions[V1].uid
    assert jobs.find_used_version(world.state, world.job("a")) == world.state.versions[V1]
    assert world.create("c").target == VersionName("p", "m", "v2")
    assert world.create("d", **BY_URI).target is None


def test_input_in_snake_case(world: World) -> None:
    """It is read, and shown as it was sent."""
    sent = {
        "model_name": str(M), "data_format": "TEXT", "input_paths": ["/x"], "output_path": "/y", "region": "r"
    }  # fmt: skip
    world.create("a", body={"predictionInput": sent})

    assert world.shown("a")["predictionInput"] == sent
    assert world.job("a").target == V1


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"modelName": None}, "model_name", "exactly one"),
        ({"versionName": str(V1)}, "version_name", "exactly one"),
        ({**BY_VERSION, "uri": "/x"}, "uri", "exactly one"),
        ({"modelName": "m"}, "model_name", "projects/PROJECT/models/MODEL"),
        ({"modelName": str(V1)}, "model_name", "projects/PROJECT/models/MODEL"),
        ({"modelName": None, "versionName": str(M)}, "version_name", "versions/VERSION"),
        ({**BY_URI, "uri": "model"}, "uri", "absolute path"),
        ({**BY_URI, "uri": "/models/*"}, "uri", "'*'"),
        ({"dataFormat": None}, "data_format", "JSON, TEXT, TF_RECORD"),
        ({"dataFormat": "DATA_FORMAT_UNSPECIFIED"}, "data_format", "JSON, TEXT, TF_RECORD"),
        ({"dataFormat": "CSV"}, "data_format", "for results only"),
        ({"dataFormat": "PARQUET"}, "data_format", "unknown"),
        ({"outputDataFormat": "TF_RECORD"}, "output_data_format", "JSON, CSV"),
        ({"inputPaths": None}, "input_paths", "Say what to read"),
        ({"inputPaths": []}, "input_paths", "Say what to read"),
        ({"inputPaths": [""]}, "input_paths", "absolute path"),
        ({"inputPaths": ["/ok", "rows.jsonl"]}, "input_paths", "'rows.jsonl'"),
        ({"inputPaths": ["/a*/b"]}, "input_paths", "last character"),
        ({"inputPaths": ["/a**"]}, "input_paths", "last character"),
        ({"inputPaths": ["s3://b/x"]}, "input_paths", "s3://"),
        ({"inputPaths": ["gs:///x"]}, "input_paths", "no bucket"),
        ({"inputPaths": ["file://x"]}, "input_paths", "absolute path"),
        ({"outputPath": None}, "output_path", "where the results go"),
        ({"outputPath": "gs://b/out*"}, "output_path", "not be in it"),
        ({"region": None}, "region", "us-central1"),
        ({"region": "Mars!"}, "region", "Mars!"),
        ({"batchSize": "0"}, "batch_size", "at least 1"),
        ({"batchSize": "-1"}, "batch_size", "at least 1"),
        ({"batchSize": 1.5}, "batch_size", "whole number"),
        ({"batchSize": "many"}, "batch_size", "whole number"),
        ({"batchSize": "9" * 5000}, "batch_size", "whole number"),
        ({"maxWorkerCount": 0}, "max_worker_count", "at least 1"),
        ({"maxWorkerCount": 1 << 63}, "max_worker_count", "whole number"),
        ({"runtimeVersion": "latest"}, "runtime_version", "2.11"),
    ],
)
def test_input_that_cannot_be(world: World, changes: dict[str, Any], field: str, says: str) -> None:
    """It is refused at once, by the field at fault."""
    with pytest.raises(InvalidArgument) as caught:
        world.create("a", **changes)

    assert caught.value.field == f"prediction_input.{field}"
    assert says in caught.value.message
    assert not world.state.jobs


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"keys": ["id", "id"]}, "keys"),
        ({"keys": [""]}, "keys"),
        ({"maxErrors": "some"}, "max_errors"),
        ({"maxErrors": "101%"}, "max_errors"),
        ({"maxErrors": -1}, "max_errors"),
        ({"runner": "Flink"}, "runner"),
        ({"runner": "os.system('x')Runner"}, "runner"),
    ],
)
def test_options_that_cannot_be(world: World, options: dict[str, Any], field: str) -> None:
    """Likewise."""
    with pytest.raises(InvalidArgument) as caught:
        world.create("a", body={"batchOptions": options})

    assert caught.value.field == f"batch_options.{field}"


@pytest.mark.parametrize(
    "changes",
    [
        {"outputDataFormat": "CSV", "dataFormat": "TF_RECORD_GZIP", "runtimeVersion": "2.11"},
        {"outputDataFormat": "TEXT", "batchSize": "64", "maxWorkerCount": 1},
        {"outputDataFormat": "DATA_FORMAT_UNSPECIFIED", "inputPaths": ["file:///x/part-*"]},
    ],
)
def test_input_that_can_be(world: World, changes: dict[str, Any]) -> None:
    """It is taken."""
    assert world.create("a", **changes).job.state is JobState.QUEUED


@settings(max_examples=300)
@given(st.text("0123456789.%-e ") | st.floats().map(str) | st.integers(0, 200).map(lambda n: f"{n}%"))
def test_the_job_understands_every_limit_that_is_taken(text: str) -> None:
    """What the API takes, the process must not refuse."""
    if text and is_error_limit(text):
        ErrorLimit.parse(text)


@pytest.mark.parametrize(
    ("job", "body", "error", "field"),
    [
        ("1st", {}, InvalidArgument, "job.job_id"),
        ("", {}, InvalidArgument, "job.job_id"),
        ("a-b", {}, InvalidArgument, "job.job_id"),
        ("b", {"predictionInput": None}, InvalidArgument, "prediction_input.model_name"),
        ("b", {"labels": {"A": "x"}}, InvalidArgument, "labels"),
        ("taken", {}, AlreadyExists, "job.job_id"),
        ("taken", {"predictionInput": {}}, AlreadyExists, "job.job_id"),
    ],
)
def test_a_job_that_cannot_be(
    world: World, job: str, body: dict[str, Any], error: type[ServingError], field: str
) -> None:
    """An id is taken for good, whatever became of the job and whatever is sent with it."""
    world.create("taken")
    world.on("taken", jobs.cancel_job)

    with pytest.raises(error) as caught:
        world.create(job, body=body)

    assert caught.value.field == field
    if error is AlreadyExists:
        assert caught.value.message == "Field: job.job_id Error: A job with this id already exists."


def test_a_model_that_is_not_there(world: World) -> None:
    """It is named, with what would make it."""
    with pytest.raises(NotFound, match=r'"projects/p/models/n".*pilotlight models create n') as caught:
        world.create("a", modelName="projects/p/models/n")

    assert caught.value.field == "prediction_input.model_name"
    with pytest.raises(NotFound, match="versions/v9") as caught:
        world.create("a", modelName=None, versionName=f"{M}/versions/v9")
    assert caught.value.field == "prediction_input.version_name"


def test_a_version_that_is_not_ready(world: World) -> None:
    """Nor is a model without a default version."""
    world.do(versions.fail_create, world.begin_version("v2"), LoadFailed("cut off"))
    world.do(models.create_model, "p", Model(name="empty"))

    with pytest.raises(FailedPrecondition, match=r"FAILED.*cut off") as caught:
        world.create("a", modelName=None, versionName=f"{M}/versions/v2")
    assert caught.value.field == "prediction_input.version_name"
    with pytest.raises(FailedPrecondition, match="no default version") as caught:
        world.create("a", modelName="projects/p/models/empty")
    assert caught.value.field == "prediction_input.model_name"


def test_the_queue_is_bounded(world: World) -> None:
    """Jobs that have ended do not count."""
    world.create("a", 2)
    world.create("b", 2)

    with pytest.raises(ResourceExhausted, match=r"2 jobs.*queue_jobs"):
        world.create("c", 2)

    world.on("a", jobs.cancel_job)
    assert world.create("c", 2).job.state is JobState.QUEUED


# ---- reading and patching


def test_jobs_are_listed_newest_first(world: World) -> None:
    """Those of the project."""
    for job in ("b", "a", "c"):
        world.create(job)
    world.do(jobs.create_job, PREDICTION, "q",
             resource_from_json(Job, {"jobId": "d", "predictionInput": INPUT}),
             sent=jobs.SentJobFields(INPUT, {}), most=9)  # fmt: skip

    names = [name.rpartition("/")[2] for _, name in jobs.list_jobs(world.state, "p")]
    assert names == ["c", "a", "b"]
    assert jobs.list_queue_positions(world.state) == {
        **{jobs.job_name("p", job): place for place, job in enumerate("bac", 1)},
        jobs.job_name("q", "d"): 4,
    }


def test_a_job_that_is_not_there(world: World) -> None:
    """It is not found, whatever is asked of it."""
    for rule in (jobs.cancel_job, start_attempt):
        with pytest.raises(NotFound, match="projects/p/jobs/x"):
            world.on("x", rule)


def test_labels_can_be_changed(world: World) -> None:
    """Nothing else; and not if somebody else did meanwhile."""
    before = world.create("a", body={"labels": {"team": "ads"}}).job.etag
    world.on("a", jobs.update_job, Job(labels={"team": "roses"}, etag=before), ["labels"])

    assert world.shown("a")["labels"] == {"team": "roses"}
    assert world.shown("a")["etag"] != before
    with pytest.raises(Aborted):
        world.on("a", jobs.update_job, Job(labels={}, etag=before), ["labels"])
    with pytest.raises(InvalidArgument, match="what can: labels"):
        world.on("a", jobs.update_job, Job(), ["labels", "state"])
    with pytest.raises(InvalidArgument):
        world.on("a", jobs.update_job, Job(labels={"A": ""}), ["labels"])


def test_work_leaves_the_etag(world: World) -> None:
    """Or nobody could change the labels of a job that runs."""
    before = world.create("a").job.etag
    world.on("a", start_attempt)
    world.on("a", jobs.record_progress, counted(5, 1), running=True)

    assert world.job("a").job.etag == before


# ---- life


def test_a_life(world: World) -> None:
    """Each state once, the times of its start and end, and counts all along."""
    world.create("a")
    assert world.on("a", start_attempt) is JobState.PREPARING
    assert world.shown("a")["startTime"] == "2030-01-01T00:00:05Z"
    assert "jobPosition" not in world.shown("a")
    assert world.on("a", jobs.record_progress, None, running=False) is JobState.PREPARING
    assert world.on("a", jobs.record_progress, counted(5, 1), running=True) is JobState.RUNNING
    assert world.shown("a")["predictionOutput"] == {
        "outputPath": "gs://b/out", "predictionCount": "5", "errorCount": "1"
    }  # fmt: skip

    ended = world.on("a", jobs.mark_succeeded, counted(9, node_hours=0.5))

    assert ended is JobState.SUCCEEDED
    assert world.shown("a")["endTime"] == "2030-01-01T00:00:08Z"
    assert world.shown("a")["predictionOutput"] == {
        "outputPath": "gs://b/out", "predictionCount": "9", "nodeHours": 0.5
    }  # fmt: skip


def test_a_later_attempt(world: World) -> None:
    """The job stays in its state and keeps the time of its start; its counts begin anew."""
    world.create("a")
    world.on("a", start_attempt)
    world.on("a", jobs.record_progress, counted(5, 1), running=True)
    world.on("a", jobs.record_lost_attempt, "It died.", 4)

    assert world.on("a", start_attempt) is JobState.RUNNING
    assert (world.job("a").attempt, world.job("a").lost) == (2, 1)
    assert world.shown("a")["startTime"] == "2030-01-01T00:00:05Z"
    assert world.shown("a")["predictionOutput"] == {"outputPath": "gs://b/out"}


def test_too_many_lost_attempts(world: World) -> None:
    """The job is to fail, and does when nothing is left of it."""
    world.create("a")
    for _ in range(4):
        assert not jobs.is_ending(world.job("a"))
        world.on("a", start_attempt)
        world.on("a", jobs.record_lost_attempt, "It died.", 4)

    assert jobs.is_ending(world.job("a"))
    assert world.on("a", start_attempt) is JobState.PREPARING
    assert world.job("a").attempt == 4
    assert world.on("a", jobs.end_stopped_job, "") is JobState.FAILED
    assert world.shown("a")["errorMessage"] == (
        "4 attempts were lost. It died. Its log tells more: pilotlight jobs stream-logs a"
    )


@pytest.mark.parametrize(
    ("rule", "arguments", "state"),
    [
        (jobs.cancel_job, (), JobState.CANCELLED),
        (jobs.fail_job, ("Its model is gone.",), JobState.FAILED),
    ],
)
def test_a_queued_job_ends_at_once(
    world: World, rule: Callable[..., Any], arguments: Any, state: JobState
) -> None:
    """Nothing of it can be lying about."""
    world.create("a")

    assert world.on("a", rule, *arguments) is state
    assert world.shown("a")["endTime"]
    assert world.shown("a")["errorMessage"] == (arguments or ("The job was cancelled.",))[0]
    assert world.on("a", start_attempt) is state
    assert not jobs.list_unfinished_jobs(world.state)


def test_a_job_that_runs_ends_in_two_steps(world: World) -> None:
    """CANCELLING is seen; the reason of a failure is not before the end."""
    for job in ("a", "b"):
        world.create(job)
        world.on(job, start_attempt)

    assert world.on("a", jobs.cancel_job) is JobState.CANCELLING
    assert world.on("a", jobs.cancel_job) is JobState.CANCELLING
    assert world.on("a", jobs.fail_job, "late") is JobState.CANCELLING
    assert world.on("b", jobs.fail_job, "Its model is gone.") is JobState.PREPARING
    assert world.on("b", jobs.cancel_job) is JobState.PREPARING
    assert [jobs.is_ending(world.job(job)) for job in "ab"] == [True, True]
    assert "errorMessage" not in world.shown("b")

    assert world.on("a", jobs.end_stopped_job, "") is JobState.CANCELLED
    assert world.on("b", jobs.end_stopped_job, "Something is left.") is JobState.FAILED
    assert world.shown("b")["errorMessage"] == "Its model is gone. Something is left."


def test_a_finished_job_cannot_be_cancelled(world: World) -> None:
    """400, which Airflow takes for good news."""
    world.create("a")
    world.on("a", start_attempt)
    world.on("a", jobs.mark_failed, "No such file.", counted())

    with pytest.raises(FailedPrecondition, match="it is FAILED"):
        world.on("a", jobs.cancel_job)
    assert world.on("a", jobs.fail_job, "late") is JobState.FAILED
    assert world.shown("a")["errorMessage"] == "No such file."


def test_the_last_word_of_a_process_counts(world: World) -> None:
    """Results that are there are there; a failure of what was to end is the end that was asked for."""
    for job in "abc":
        world.create(job)
        world.on(job, start_attempt)
    world.on("a", jobs.cancel_job)
    world.on("b", jobs.cancel_job)
    world.on("c", jobs.fail_job, "Its model is gone.")

    assert world.on("a", jobs.mark_succeeded, counted(3, 1)) is JobState.SUCCEEDED
    assert world.on("b", jobs.mark_failed, "x", counted(3, 1)) is JobState.CANCELLED
    assert world.on("c", jobs.mark_failed, "x", counted(3, 1)) is JobState.FAILED
    assert world.shown("c")["errorMessage"] == "Its model is gone."
    assert world.shown("c")["predictionOutput"]["errorCount"] == "1"


def test_a_version_that_was_made_anew_is_another(world: World) -> None:
    """One that is being deleted is gone already."""
    world.create("a")
    deletion = world.do(versions.delete_version, V1).name
    assert jobs.find_used_version(world.state, world.job("a")) is None

    world.do(versions.finish_delete, deletion)
    world.version("v1")

    assert jobs.find_used_version(world.state, world.job("a")) is None
    assert jobs.find_used_version(world.state, world.create("b")) is not None


def test_a_record_is_kept_as_it_is(world: World) -> None:
    """Over the store's JSON."""
    record = world.create("a", body={"batchOptions": {"keys": ["id"]}}, batchSize=7)

    assert msgspec.json.decode(msgspec.json.encode(record), type=JobRecord) == record
