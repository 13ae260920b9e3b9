"""What training jobs ask of the server, and what their processes get and report."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from autoscaler.pools import PilotSpec
from serving.config import ServeConfig
from serving.errors import ServingError, Unimplemented
from serving.gateway.catalog import Catalog
from serving.gateway.catalog.jobs import with_output
from serving.gateway.jobs.job_kind import FailedAttempt, SucceededAttempt, TimeLimits
from serving.gateway.jobs.kinds.training.training_kind import TrainingKind
from serving.gateway.jobs.kinds.training.trials.tuning_director import TuningDirector
from serving.gateway.state.records import JobKindName, JobRecord
from serving.gateway.state.store import SqliteStore
from serving.gateway.state.study_records import StudySnapshot
from serving.resources import Job, TrainingOutput, resource_from_json
from training.messages import (
    ContainerProgram,
    Heartbeat,
    ReplicaEvent,
    ReplicaReport,
    ReplicaRole,
    TrainingFailure,
    TrainingPhase,
    TrainingReport,
    TrainingRequest,
    TrainingSuccess,
)
from tuning.messages import SuggestionAnswer

INPUT: dict[str, Any] = {
    "region": "us-central1",
    "packageUris": ["/data/trainer-0.1.tar.gz"],
    "pythonModule": "trainer.task",
}
IMAGE: dict[str, Any] = {"packageUris": None, "pythonModule": None}
BOOSTED_TREES = {"imageUri": "gcr.io/cloud-ml-algos/boosted_trees:latest"}
OWN_IMAGE: dict[str, Any] = {**IMAGE, "masterConfig": {"imageUri": "gcr.io/p/t:1"}}
GPUS = {"acceleratorConfig": {"type": "NVIDIA_TESLA_T4", "count": "2"}}


def make_kind(folder: Path, **settings: Any) -> TrainingKind:
    config = ServeConfig(state_dir=folder / "state", **{"training_seats": 8, "gpus": "off", **settings})
    (folder / "state").mkdir(exist_ok=True)
    catalog = Catalog(SqliteStore(folder / "state" / "state.db"), lambda _: None)
    environment = {"PATH": "/bin", "SECRET": "s", "STORAGE_EMULATOR_HOST": "http://e"}
    director = TuningDirector(catalog, suggest_nothing)
    return TrainingKind(config, environment, director, lambda framework: PilotSpec(framework, (), {}))


async def suggest_nothing(snapshot: StudySnapshot, count: int) -> SuggestionAnswer:
    raise AssertionError(snapshot)


def make_job(options: Any = None, **changes: Any) -> Job:
    return resource_from_json(Job, {"trainingInput": {**INPUT, **changes}, "trainingOptions": options})


def make_record(job: Job, attempt: int = 1) -> JobRecord:
    job = msgspec.structs.replace(job, job_id="j")
    given = msgspec.Raw(b'{"as": "sent"}')
    return JobRecord(
        name="projects/p/jobs/j", project="p", uid="u", number=1, kind=JobKindName.TRAINING, job=job,
        given=given, attempt=attempt,
    )  # fmt: skip


def build_request(kind: TrainingKind, job: Job) -> TrainingRequest:
    attempt = kind.create_attempt(make_record(job), None, Path("/jobs/u"))
    return msgspec.json.decode(attempt.request, type=TrainingRequest)


@pytest.mark.parametrize(
    ("settings", "changes", "message"),
    [
        ({}, {"scaleTier": "PREMIUM_1"}, r"training_input\.scale_tier .*31 replicas"),
        ({}, {"workerCount": "many"}, r"training_input\.worker_count"),
        ({"container_engine": "true", "trusted_sources": "docker://gcr.io/q"}, OWN_IMAGE,
         r"training_input\.master_config\.image_uri .*gcr.io/p/t:1 is no image that this server trusts"),
        ({"container_engine": "true"}, {**OWN_IMAGE, "jobDir": "file:///data/a%3Ab"},
         r"training_input\.job_dir .*has a colon"),
        ({"container_engine": "true", "gpus": "0"}, {**OWN_IMAGE, "scaleTier": "BASIC_GPU"},
         r"training_input\.master_config\.accelerator_config .*not passed on to containers"),
        ({}, {"scaleTier": "BASIC_TPU"}, r"training_input\.scale_tier .*no TPUs"),
        ({}, {"scaleTier": "BASIC_GPU"}, r"accelerator_config .*has none \(setting gpus\)"),
        ({"local_folders": "/data"}, {"jobDir": "/elsewhere"}, r"training_input\.job_dir .*local_folders"),
        ({"local_folders": "/home"}, {}, r"training_input\.package_uris .*local_folders"),
        ({"trusted_sources": "gs://b"}, {}, r"training_input\.package_uris .*trusted_sources"),
    ],
)  # fmt: skip
def test_what_the_settings_refuse(tmp_path: Path, settings: Any, changes: Any, message: str) -> None:
    with pytest.raises(ServingError, match=message):
        make_kind(tmp_path, **settings).check_settings(make_job(**changes))


def test_an_image_without_an_engine(tmp_path: Path) -> None:
    """It is what this server does not do, and the field says so."""
    with pytest.raises(Unimplemented, match=r"master_config\.image_uri .*--container-engine docker"):
        make_kind(tmp_path).check_settings(make_job(**OWN_IMAGE))


def test_the_request_of_containers(tmp_path: Path) -> None:
    """A group without an image has the master's; they get nothing of this machine's programs."""
    kind = make_kind(tmp_path, container_engine="true")
    job = make_job(
        **IMAGE, scaleTier="CUSTOM", masterType="n1-standard-4", workerType="n1-standard-4", workerCount=1,
        masterConfig={"imageUri": "gcr.io/p/t:1"}, workerConfig={"containerArgs": ["a"]}, jobDir="/out",
    )  # fmt: skip

    request = build_request(kind, job)

    assert request.engine is not None
    assert Path(request.engine.path).name == "true"
    assert request.engine.environment == {"PATH": "/bin"}
    assert [group.container for group in request.groups] == [
        ContainerProgram("gcr.io/p/t:1"), ContainerProgram("gcr.io/p/t:1", (), ("a",))
    ]  # fmt: skip
    assert request.environment == {"STORAGE_EMULATOR_HOST": "http://e"}
    assert request.primary_name == "master"


def test_the_request_of_a_cluster(tmp_path: Path) -> None:
    """Each replica has its own GPUs; the program finds what the job says, and nothing of the server's."""
    kind = make_kind(tmp_path, gpus="0,1,2,3", training_memory_bytes=800)
    job = make_job(
        {"env": {"A": "b"}, "restarts": True, "threads": 2},
        scaleTier="custom", masterType="n1-standard-4", masterConfig=GPUS, workerCount=1,
        workerType="n1-standard-4", workerConfig=GPUS, parameterServerCount=1,
        parameterServerType="n1-standard-4", args=["--x"], jobDir="gs://b/out",
    )  # fmt: skip
    kind.check_settings(job)

    request = build_request(kind, job)

    assert [(group.role, group.count, group.devices) for group in request.groups] == [
        (ReplicaRole.MASTER, 1, ("0,1",)),
        (ReplicaRole.WORKER, 1, ("2,3",)),
        (ReplicaRole.PARAMETER_SERVER, 1, ("",)),
    ]
    assert (request.module, request.args, request.job_dir) == ("trainer.task", ("--x",), "gs://b/out")
    assert (request.memory_bytes, request.threads, request.variables) == (300, 2, {"A": "b"})
    assert request.restarts.restart_on_error
    assert request.training_input == {"as": "sent"}
    assert "SECRET" not in request.environment
    assert request.environment["STORAGE_EMULATOR_HOST"] == "http://e"
    assert request.log_dir == "/jobs/u/logs"


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "chief"),
        ({"runtimeVersion": "2.11"}, "chief"),
        ({"runtimeVersion": "1.15"}, "master"),
        ({**IMAGE, "masterConfig": BOOSTED_TREES, "jobDir": "/out"}, "master"),
        ({**IMAGE, "masterConfig": BOOSTED_TREES, "jobDir": "/out", "useChiefInTfConfig": True}, "chief"),
    ],
)
def test_what_tf_config_calls_the_first_replica(tmp_path: Path, changes: Any, name: str) -> None:
    assert build_request(make_kind(tmp_path), make_job(**changes)).primary_name == name


def test_devices_are_lent_until_the_job_is_over(tmp_path: Path) -> None:
    kind = make_kind(tmp_path, gpus="0,1")
    job = make_job(scaleTier="BASIC_GPU")
    first, second = make_record(job), msgspec.structs.replace(make_record(job), name="projects/p/jobs/k")

    def lend(record: JobRecord) -> tuple[str, ...]:
        attempt = kind.create_attempt(record, None, Path("/jobs"))
        return msgspec.json.decode(attempt.request, type=TrainingRequest).groups[0].devices

    assert (lend(first), lend(second)) == (("0",), ("1",))
    kind.choose_due([], [second])
    assert lend(first) == ("0",)


def test_reports_of_a_supervisor(tmp_path: Path) -> None:
    """What they say is shown, and units of the end are added to those before."""
    kind = make_kind(tmp_path)
    job = msgspec.structs.replace(make_job(), training_output=TrainingOutput(consumed_ml_units=1.0))
    record = make_record(job)
    attempt = kind.create_attempt(record, None, Path("/jobs"))

    def report(**fields: Any) -> Any:
        return attempt.read_report(msgspec.json.encode(TrainingReport(**fields)), 0.0)

    assert attempt.read_report(b"not a report", 0.0) is None
    assert report(phase=TrainingPhase.PREPARING) is None
    assert (attempt.phase, attempt.is_running) == ("PREPARING", False)
    report(phase=TrainingPhase.RUNNING)
    report(replica=ReplicaReport("worker-replica-0", ReplicaEvent.ENDED, 7, -9, restarts=2))
    assert attempt.is_running
    assert kind.render_progress(record, attempt) == {
        "replicas": [
            {"task": "worker-replica-0", "state": "ENDED", "exitCode": -9, "restarts": 2, "jobRestarts": 0}
        ]
    }
    outputs = [attempt.output]
    report(heartbeat=Heartbeat(replica_seconds=3600))
    assert [*outputs, attempt.output] == [None, TrainingOutput(consumed_ml_units=2.0)]
    done = report(done=TrainingSuccess(seconds=1800, replica_seconds=7200))
    failed = report(failed=TrainingFailure("ABORTED", "It broke.", replica_seconds=1800))
    assert isinstance(done, SucceededAttempt)
    assert isinstance(failed, FailedAttempt)
    assert (done.output, failed.output) == (
        TrainingOutput(consumed_ml_units=3.0),
        TrainingOutput(consumed_ml_units=1.5),
    )
    assert failed.message == "It broke."


def test_the_units_of_an_attempt_that_was_lost_count(tmp_path: Path) -> None:
    kind = make_kind(tmp_path)
    sent = resource_from_json(
        Job, {"trainingInput": INPUT, "trainingOutput": {"consumedMLUnits": 7, "isBuiltInAlgorithmJob": True}}
    )
    record = make_record(msgspec.structs.replace(sent, training_output=kind.build_first_output(sent)))
    for _ in range(2):
        attempt = kind.create_attempt(record, None, Path("/jobs"))
        attempt.read_report(msgspec.json.encode(TrainingReport(heartbeat=Heartbeat(1800))), 0.0)
        record = with_output(record, attempt.output or TrainingOutput())
        record = with_output(record, kind.build_next_output(record))

    assert record.job.training_output is not None
    assert record.job.training_output.consumed_ml_units == 1.0
    assert record.job.training_output.is_built_in_algorithm_job


@pytest.mark.parametrize(("args", "framework"), [([], "XGBOOST"), (["--preprocess"], "SCIKIT_LEARN")])
def test_the_model_of_a_built_in_algorithm(tmp_path: Path, args: list[str], framework: str) -> None:
    kind = make_kind(tmp_path)
    job = make_job(**IMAGE, masterConfig=BOOSTED_TREES, jobDir="gs://b/out/", args=args)
    record = make_record(msgspec.structs.replace(job, training_output=kind.build_first_output(job)))
    attempt = kind.create_attempt(record, None, Path("/jobs"))

    done = attempt.read_report(msgspec.json.encode(TrainingReport(done=TrainingSuccess(1.0, 1.0))), 0.0)

    assert isinstance(done, SucceededAttempt)
    assert isinstance(done.output, TrainingOutput)
    assert done.output.is_built_in_algorithm_job
    built = done.output.built_in_algorithm_output
    assert built is not None
    assert (built.framework, built.model_path) == (framework, "gs://b/out/model")


def test_who_has_a_job_deployed_may_create_versions(tmp_path: Path) -> None:
    deploying = make_job({"deploy": {"model": "m"}}, jobDir="gs://b/out")

    assert make_kind(tmp_path).list_permissions("p", make_job()) == ()
    assert make_kind(tmp_path).list_permissions("p", deploying) == [
        ("ml.versions.create", "projects/p/models/m")
    ]


def test_time_limits(tmp_path: Path) -> None:
    scheduling = {"maxWaitTime": "3600s", "maxRunningTime": "1.5s"}

    assert make_kind(tmp_path).find_time_limits(make_job(scheduling=scheduling)) == TimeLimits(3600.0, 1.5)
    assert make_kind(tmp_path).find_time_limits(make_job()) == TimeLimits()


@pytest.mark.parametrize(
    ("text", "pilot"), [("import tensorflow as tf\n", "TENSORFLOW"), ("import sklearn\n", ""), (None, "")]
)
def test_the_pilot_that_suits_the_packages(tmp_path: Path, text: str | None, pilot: str) -> None:
    """By what the code of local packages imports; those of buckets are not read here."""
    wheel = tmp_path / "trainer-0.1-py3-none-any.whl"
    if text is not None:
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("trainer/task.py", text)
    kind = make_kind(tmp_path)
    job = make_job(packageUris=["gs://bucket/trainer-0.1.tar.gz", str(wheel)])
    attempt = kind.create_attempt(make_record(job), None, Path("/jobs/u"))

    plan = kind.plan_fork(attempt)

    assert plan is not None
    assert plan.pilot.key == pilot
    assert plan.launch.environment == kind.environment
    assert plan.launch.watches_lifeline
    request = msgspec.convert(plan.launch.arguments["request"], TrainingRequest)
    assert request == msgspec.json.decode(attempt.request, type=TrainingRequest)


def test_no_pilot_for_another_interpreter(tmp_path: Path) -> None:
    kind = make_kind(tmp_path, runtime=(f"2.11={sys.executable}",))
    attempt = kind.create_attempt(make_record(make_job(runtimeVersion="2.11")), None, Path("/jobs/u"))

    assert kind.plan_fork(attempt) is None
