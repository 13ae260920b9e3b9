"""Other runners than the embedded one: what they are told, what they need, and a real job server.

The job server is Beam's own in Python, in a process of its own: it speaks the API of those of Flink, Spark
and Prism. It calls back workers that are threads of the job's process, or those of a pool, one more process.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

import msgspec
import numpy as np
import pytest
import xgboost as xgb
from apache_beam.metrics.execution import MetricKey, MetricResult
from apache_beam.metrics.metricbase import MetricName
from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions
from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc
from apache_beam.runners.runner import PipelineRunner, PipelineState

from batch.beam import pipeline, remote, runners
from batch.beam.model_handler import SharedModel
from batch.beam.pipeline import PipelinePlan
from batch.beam.runners import RemoteRunner, RunnerRequest
from batch.engines.engine import Engine, EngineState, OpaqueEngine, PipelineName
from batch.engines.flink import FlinkEngine
from batch.failures import ErrorLimit, JobFailed, StepErrors, StepFailed
from batch.messages import EMBEDDED, FailureStatus, JobCounts, JobReport, JobRequest, ModelSource
from batch.records.input_shards import Shard
from batch.worker_signs import format_signs_folder
from serving.artifacts.storage import FileStore
from serving.errors import FailedPrecondition, InvalidArgument, ServingError, Unavailable
from tests.batch.engines import flink_peer
from tests.batch.engines.http_peer import serve
from tests.batch.engines.spark_peer import SparkPeer, application
from tests.bounds import HANG_SECONDS
from tests.emulator import Emulator
from tests.server import until

GS = ("gs://bucket/model", "gs://bucket/in/*", "gs://bucket/out")
IMAGE = "--sdk_container_image=image"


def wish(runner: str, *arguments: str, paths: Sequence[str] = GS, **more: Any) -> RunnerRequest:
    given: dict[str, Any] = {
        "job": "projects/p/jobs/My_Job",
        "uid": "u1",
        "workers": 7,
        "folder": "gs://bucket/out/.pilotlight/u/1",
    }
    return RunnerRequest(runner=runner, arguments=arguments, paths=tuple(paths), **(given | more))


# ---- what a runner is told


def test_a_pipeline_has_the_name_of_its_attempt() -> None:
    """By which it is found on the engine: nobody else gives it another one."""
    found = runners.create_remote_runner(wish("DataflowRunner", "--region=r", attempt=2))

    assert found.options.get_all_options()["job_name"] == "pilotlight-my-job-u1-2"
    with pytest.raises(InvalidArgument, match="--job_name cannot be set"):
        runners.create_remote_runner(wish("DataflowRunner", "--job_name=mine"))


def test_java_is_asked_for_where_it_is_started() -> None:
    """A jar that is posted to Flink needs none here."""
    without = "--job_server_java_launcher=no-java"
    runners.create_remote_runner(
        wish("FlinkRunner", without, "--flink_master=f:1", "--flink_submit_uber_jar")
    )
    runners.create_remote_runner(wish("SparkRunner", without, "--spark_submit_uber_jar"))
    runners.create_remote_runner(wish("PrismRunner", without))
    with pytest.raises(FailedPrecondition, match="Install Java 11"):
        runners.create_remote_runner(wish("FlinkRunner", without, "--flink_submit_uber_jar"))


@pytest.mark.parametrize(
    ("runner", "name", "value"),
    [
        ("FlinkRunner", "parallelism", 7),
        ("DataflowRunner", "max_num_workers", 7),
        ("DataflowRunner", "region", "europe-west1"),
        ("DataflowRunner", "temp_location", "gs://bucket/out/.pilotlight/u/1/beam"),
    ],
)
def test_options_follow_from_the_job_unless_they_are_given(runner: str, name: str, value: object) -> None:
    """Workers, region, place for temporary files and name are the job's, if nobody says otherwise."""
    flag = "--flink_master=flink:8081" if runner == "FlinkRunner" else "--spark_master_url=spark://spark:7077"
    asked = wish(runner, flag, "--labels=a=b", attempt=2, region="europe-west1")
    said = wish(runner, flag, f"--{name}=3", attempt=2, region="europe-west1")

    assert runners.create_remote_runner(asked).options.get_all_options()[name] == value
    assert str(runners.create_remote_runner(said).options.get_all_options()[name]) == "3"


@pytest.mark.parametrize(
    ("runner", "arguments", "here", "bare"),
    [
        ("FlinkRunner", [], True, False),
        ("FlinkRunner", ["--flink_master=flink:8081"], False, True),
        ("FlinkRunner", ["--flink_master=flink:8081", "--environment_type=LOOPBACK"], True, False),
        ("FlinkRunner", ["--flink_master=flink:8081", "--environment_type=PROCESS"], False, False),
        ("SparkRunner", ["--spark_master_url=local[2]"], True, False),
        ("SparkRunner", ["--spark_master_url=spark://spark:7077"], False, True),
        ("PrismRunner", [], True, False),
        ("PrismRunner", ["--environment_type=DOCKER"], False, True),
        ("DataflowRunner", ["--region=r"], False, True),
        ("DataflowRunner", [IMAGE], False, False),
        ("DataflowRunner", ["--requirements_file=r.txt"], False, False),
        ("DataflowRunner", ["--setup_file=setup.py"], False, False),
        ("DataflowRunner", ["--extra_package=a.whl"], False, True),
    ],
)
def test_where_workers_are_and_what_they_have(
    runner: str, arguments: list[str], *, here: bool, bare: bool
) -> None:
    """As Beam has it: in this process where it makes the cluster itself, else in its container."""
    found = runners.create_remote_runner(wish(runner, *arguments))

    assert (found.in_process, found.bare_workers) == (here, bare)


def test_sparks_master_is_asked_by_its_web_ui() -> None:
    """Of the job by the name that its pipeline has; the address is an option of ours."""
    name = PipelineName.of_job("projects/p/jobs/My_Job", "u1").format_attempt(1)
    with serve(SparkPeer(active=[application("a", name, "WAITING")])) as peer:
        flags = ("--spark_master_url=spark://spark:7077", f"--spark_master_webui={peer.url}")
        found = runners.create_remote_runner(wish("SparkRunner", *flags))

        assert found.engine.find_state() is EngineState.WAITING


def test_packages_are_brought_before_those_of_the_options() -> None:
    """The workers install in this order."""
    found = runners.create_remote_runner(wish("DataflowRunner", "--extra_package=theirs.whl"))
    found.add_packages(["ours.tar.gz"])

    assert found.options.view_as(SetupOptions).extra_packages == ["ours.tar.gz", "theirs.whl"]


@pytest.mark.parametrize(
    ("runner", "arguments", "error", "reason"),
    [
        ("DirectRunner", [], InvalidArgument, "Unknown runner 'DirectRunner'; known: FnApiRunner"),
        ("FlinkRunner", ["--parallelism=x"], InvalidArgument, "--parallelism: invalid int value: 'x'"),
        ("FlinkRunner", ["--flink_mastr=h:1"], InvalidArgument, "Did you mean --flink_master?"),
        ("DataflowRunner", ["--nonsense"], InvalidArgument, "DataflowRunner has no option --nonsense."),
        ("FlinkRunner", ["flink:8081"], InvalidArgument, "'flink:8081' is not a pipeline option"),
        ("SparkRunner", ["--streaming"], InvalidArgument, "--streaming cannot be set"),
        (
            "SparkRunner",
            ["--environment_config={command:/w}"],
            InvalidArgument,
            "Put single quotes around it",
        ),
        ("PortableRunner", [], InvalidArgument, "--job_endpoint=HOST:PORT"),
        ("PortableRunner", ["--job_endpoint=localhost:1"], FailedPrecondition, "No Beam job server answers"),
        ("FlinkRunner", ["--job_server_java_launcher=no-java"], FailedPrecondition, "Install Java 11"),
    ],
)
def test_what_cannot_work_is_refused_before_it_starts(
    monkeypatch: pytest.MonkeyPatch,
    runner: str,
    arguments: list[str],
    error: type[ServingError],
    reason: str,
) -> None:
    """The error names the option, or what is missing."""
    monkeypatch.setattr(runners, "_ANSWER_WITHIN", 0.5)

    with pytest.raises(error) as raised:
        runners.create_remote_runner(wish(runner, *arguments))

    assert reason in raised.value.message


def test_workers_in_containers_find_no_local_paths() -> None:
    """That is told at once, and not by a worker who finds nothing."""
    paths = ("gs://bucket/model", "/data/in/*", "gs://bucket/out")

    with pytest.raises(FailedPrecondition, match=r"no /data/in/\*\. Use gs://"):
        runners.create_remote_runner(wish("DataflowRunner", paths=paths))
    assert not runners.create_remote_runner(wish("DataflowRunner", IMAGE, paths=paths)).bare_workers


# ---- a runner that is made up


class FakeRunner(PipelineRunner):
    """Takes a pipeline and does nothing with it, and says it is done once its metrics were asked for."""

    def __init__(self, counters: Mapping[str, int], *, error: Exception | None = None) -> None:
        self.counters = counters
        self.error = error
        self.asked = threading.Event()
        self.cancelled = False

    def run_pipeline(self, pipeline: Any, options: Any) -> Any:
        if self.error:
            raise self.error
        return self

    @property
    def state(self) -> str:
        return str(PipelineState.CANCELLED if self.cancelled else PipelineState.DONE)

    def wait_until_finish(self) -> None:
        assert self.asked.wait(HANG_SECONDS)

    def metrics(self) -> FakeRunner:
        return self

    def query(self, _: object) -> dict[str, list[MetricResult]]:
        self.asked.set()
        key = "step"
        return {
            "counters": [
                MetricResult(MetricKey(key, MetricName("pilotlight", name)), None, number)
                for name, number in self.counters.items()
            ]
        }

    def cancel(self) -> None:
        self.cancelled = True
        self.asked.set()


def run_fake(
    runner: FakeRunner,
    limit: ErrorLimit,
    *,
    bare: bool = False,
    engine: Engine = OpaqueEngine("Fake"),  # noqa: B008  immutable
    folder: str = "/nowhere",
) -> tuple[list[JobCounts], list[str]]:
    """What was counted, and the packages that were brought."""
    counted: list[JobCounts] = []
    options = PipelineOptions([])
    remote.run_remote(
        PipelinePlan(
            FileStore(),
            [Shard(0, ())],
            "JSON",
            "JSON",
            SharedModel(ModelSource(), "", 0),
            {},
            0,
            (),
            folder,
            "",
        ),
        RemoteRunner("FakeRunner", runner, engine, options, in_process=False, bare_workers=bare),
        lambda: ["ours.tar.gz"],
        pipeline.RunContext(
            limit, 100, counted.append, pytest.fail, lambda failed: pytest.fail(failed.message)
        ),
    )
    return counted, options.view_as(SetupOptions).extra_packages or []


def test_progress_is_read_from_the_runners_metrics() -> None:
    """What workers have counted so far is told, and a bare worker gets packages."""
    fake = FakeRunner({"predictions": 5, "errors": 1, "bytes": 70})
    counted, packages = run_fake(fake, ErrorLimit(), bare=True)

    assert counted[0] == JobCounts(predictions=5, errors=1, bytes=70, bytes_total=100)
    assert packages == ["ours.tar.gz"]
    assert not fake.cancelled


def test_too_many_errors_cancel_the_pipeline() -> None:
    """It is stopped where it runs, and the job says why."""
    fake = FakeRunner({"predictions": 5, "errors": 3})
    with pytest.raises(JobFailed, match="3 of 8 records failed; at most 2 may") as raised:
        run_fake(fake, ErrorLimit(records=2))

    assert fake.cancelled
    assert raised.value.failure.errors == 3


class FakeFailingRunner(FakeRunner):
    """A runner of whose workers one has failed, which the runner does not tell."""

    def __init__(self, errors: StepErrors) -> None:
        super().__init__({})
        self._step_errors = errors

    def query(self, _: object) -> dict[str, list[MetricResult]]:
        with contextlib.suppress(KeyError), self._step_errors.carry():
            raise KeyError("x")
        return {"counters": []}


def test_an_error_in_a_worker_ends_the_pipeline_at_once(tmp_path: Path) -> None:
    """Engines repeat it a few times before they tell. What an earlier attempt has left is not of this one."""
    errors = StepErrors(FileStore(), format_signs_folder(str(tmp_path)))
    with pytest.raises(StepFailed), errors.carry():
        raise InvalidArgument("of an earlier attempt")
    fake = FakeFailingRunner(errors)
    with pytest.raises(JobFailed) as raised:
        run_fake(fake, ErrorLimit(), folder=str(tmp_path))

    assert fake.cancelled
    assert raised.value.failure == FailureStatus("INTERNAL", "The pipeline failed: KeyError: 'x'")


@pytest.mark.parametrize("stop", ["too many errors", "SIGTERM while Beam submits"])
def test_a_job_that_is_stopped_is_cancelled_on_the_engine(monkeypatch: pytest.MonkeyPatch, stop: str) -> None:
    """Beam's job server does not tell Flink; the job may not even be back from the job server."""
    ours = PipelineName.of_job("j", "u1")
    peer = flink_peer.FlinkPeer(jobs=[flink_peer.job("a", ours.stem, running=1)])
    with serve(peer):
        engine = FlinkEngine(peer.url, ours, 1)
        if stop == "too many errors":
            with pytest.raises(JobFailed, match="3 of 8 records failed"):
                run_fake(FakeRunner({"predictions": 5, "errors": 3}), ErrorLimit(records=2), engine=engine)
        else:
            ended: list[int] = []

            def end_process(code: int) -> None:
                ended.append(code)
                raise SystemExit(code)

            monkeypatch.setattr("os._exit", end_process)
            with pytest.raises(SystemExit):
                run_fake(SlowRunner({}), ErrorLimit(), engine=engine)
            assert ended == [128 + signal.SIGTERM]

    assert peer.jobs[0]["state"] == "CANCELED"


class SlowRunner(FakeRunner):
    """Is sent SIGTERM while it takes a pipeline."""

    def run_pipeline(self, pipeline: Any, options: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        raise AssertionError("SIGTERM was not heard")


@pytest.mark.parametrize(
    ("error", "expected", "reason"),
    [
        (
            "org.apache.flink.util.FlinkException: Job failed\n\tat a.B.c(B.java:1)\nCaused by: "
            "java.util.concurrent.TimeoutException: Heartbeat of TaskManager tm1 timed out.\n\t... 3 more",
            Unavailable,
            "FAILED: java.util.concurrent.TimeoutException: Heartbeat of TaskManager tm1 timed out.",
        ),
        (
            "java.lang.OutOfMemoryError: Java heap space\njava.base/java.lang.Thread.run(Thread.java:840)",
            JobFailed,
            "FAILED: java.lang.OutOfMemoryError: Java heap space",
        ),
    ],
)
def test_a_pipeline_that_fails_says_why(error: str, expected: type[Exception], reason: str) -> None:
    """By the root exception, never a frame; after a lost worker another attempt may succeed."""
    fake = FailingRunner(error)
    engine = FlinkEngine("127.0.0.1:1", PipelineName.of_job("j", "u1"), 1)

    with pytest.raises(expected) as raised:
        run_fake(fake, ErrorLimit(), engine=engine)
    assert str(raised.value).endswith(reason)


class FailingRunner(FakeRunner):
    """Fails with an error once its metrics were asked for."""

    def __init__(self, text: str) -> None:
        super().__init__({})
        self.text = text

    @property
    def state(self) -> str:
        return str(PipelineState.FAILED)

    def wait_until_finish(self) -> None:
        super().wait_until_finish()
        raise RuntimeError(self.text)


def test_a_runner_that_cannot_start_is_told_of() -> None:
    """Options that it checks itself are a wrong request; all else is something that is missing."""
    with pytest.raises(InvalidArgument, match="FakeRunner does not take the options: no region"):
        run_fake(FakeRunner({}, error=ValueError("no region")), ErrorLimit())
    with pytest.raises(FailedPrecondition, match="OSError: no cluster"):
        run_fake(FakeRunner({}, error=OSError("no cluster")), ErrorLimit())


# ---- a job server


@contextmanager
def running(*command: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, "-m", *command], stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def job_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a job server."""
    folder = tmp_path_factory.mktemp("job-server")
    port = folder / "port"
    command = ("apache_beam.runners.portability.local_job_service_main", "--port_file", str(port))
    with running(*command, log=folder / "log"):
        until(port.exists, "a job server")
        yield f"localhost:{port.read_text()}"


@pytest.fixture(scope="module")
def booster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small model of three features."""
    folder = tmp_path_factory.mktemp("booster")
    rows = np.random.default_rng(0).normal(size=(200, 3))
    model = xgb.train({"max_depth": 3, "nthread": 1}, xgb.DMatrix(rows, rows[:, 0] > 0), 3)
    model.save_model(folder / "model.json")
    return folder


def request(folder: Path, model: ModelSource, **more: Any) -> JobRequest:
    given: dict[str, Any] = {
        "job": "projects/p/jobs/remote",
        "uid": "u1",
        "model": model,
        "input_paths": (str(folder / "in/*"),),
        "output_path": str(folder / "out"),
        "max_workers": 2,
        "scratch_dir": str(folder / "scratch"),
        "cache_dir": str(folder / "cache"),
        "cache_bytes": 1 << 30,
    }
    return JobRequest(**(given | more))


def start(asked: JobRequest) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin
    process.stdin.write(msgspec.json.encode(asked))
    process.stdin.close()
    process.stdin = None
    return process


def end(process: subprocess.Popen[bytes]) -> JobReport:
    """The last report of a job."""
    output, log = process.communicate(timeout=HANG_SECONDS)
    assert output, log.decode()
    return msgspec.json.decode(output.splitlines()[-1], type=JobReport)


def write_rows(folder: Path, count: int = 300) -> None:
    (folder / "in").mkdir(parents=True)
    rows = np.random.default_rng(1).normal(size=(count, 3)).tolist()
    (folder / "in/rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def results(folder: Path) -> str:
    return "".join(file.read_text() for file in sorted((folder / "out").glob("prediction.results-*")))


def loopback(job_server: str) -> dict[str, Any]:
    options = (f"--job_endpoint={job_server}", "--environment_type=LOOPBACK")
    return {"runner": "PortableRunner", "pipeline_options": options}


@pytest.mark.parametrize("field", ["input_paths", "output_path", "model"])
def test_a_job_stays_in_its_folders(tmp_path: Path, booster: Path, field: str) -> None:
    """A link that leads to what is refused ends the job at once, and nothing of it is told or written."""
    write_rows(tmp_path)
    state = tmp_path / "state"
    state.mkdir()
    (state / "admin-token").write_text("very secret")
    asked = request(
        tmp_path, ModelSource(uri=str(booster), framework="XGBOOST"), refused_folders=(str(state),)
    )
    if field == "input_paths":
        (tmp_path / "in" / "row-link").symlink_to(state / "admin-token")
    elif field == "output_path":
        (tmp_path / "out").symlink_to(state)
    else:
        (tmp_path / "model").symlink_to(state)
        asked = msgspec.structs.replace(asked, model=ModelSource(uri=str(tmp_path / "model")))

    report = end(start(asked))

    assert report.failed is not None
    assert report.failed.status == "FAILED_PRECONDITION"
    assert "local_folders" in report.failed.message
    assert [path.name for path in state.iterdir()] == ["admin-token"]
    written = (path for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert field == "output_path" or not any(b"secret" in path.read_bytes() for path in written)


def test_a_job_server_gives_the_embedded_runners_results(
    tmp_path: Path, job_server: str, booster: Path
) -> None:
    """The same pipeline, run by another process, writes the same lines in the same order."""
    for name in ("here", "there"):
        write_rows(tmp_path / name)
    model = ModelSource(uri=str(booster))
    jobs = [
        start(request(tmp_path / "here", model, runner=EMBEDDED)),
        start(request(tmp_path / "there", model, **loopback(job_server))),
    ]
    here, there = [end(job).done for job in jobs]

    assert here is not None
    assert there is not None
    assert (there.predictions, there.errors) == (300, 0) == (here.predictions, here.errors)
    assert results(tmp_path / "there") == results(tmp_path / "here")


@contextmanager
def pool_options(job_server: str, log: Path) -> Iterator[tuple[str, ...]]:
    """Options for workers of a pool, which is there for the block."""
    with running("batch.pool", "--port", "0", log=log):
        found = until(lambda: re.search(r"whoever asks (\S+)\n", log.read_text()), "a worker pool")
        yield (
            f"--job_endpoint={job_server}",
            "--environment_type=EXTERNAL",
            f"--environment_config={found[1]}",
        )


def write_routine(folder: Path, predict: str) -> dict[str, Any]:
    """The fields of a model whose package has a routine, which answers with what `predict` returns."""
    folder.mkdir(parents=True)
    (folder / "scorer.py").write_text(
        dedent(
            f"""
            import pathlib, time

            class Scorer:
                def predict(self, instances, **kwargs):
                    return [self.predict_one(one) for one in instances]

                def predict_one(self, instance):
                    {predict}

                @classmethod
                def from_path(cls, model_dir):
                    made = cls()
                    made.model_dir = pathlib.Path(model_dir)
                    return made
            """
        )
    )
    return {
        "prediction_class": "scorer.Scorer",
        "packages": (str(folder),),
        "package_uris": ("gs://gone/scorer-0.1.whl",),
    }


def test_a_worker_in_another_process_needs_nothing_but_uris(
    tmp_path: Path, job_server: str, booster: Path, emulator: Emulator
) -> None:
    """Model, input and output are on gs://; the worker knows nothing of the folders of the job. The packages
    come by way of the output.
    """
    bucket = f"gs://{emulator.bucket()}"
    emulator.upload(booster, f"{bucket}/model")
    write_rows(tmp_path)
    emulator.upload(tmp_path / "in", f"{bucket}/in")
    code = tmp_path / "code"
    routine = write_routine(code, "return [__file__, [path.name for path in self.model_dir.iterdir()]]")
    asked = request(
        tmp_path,
        ModelSource(model_dir=str(tmp_path / "not-there"), uri=f"{bucket}/model", **routine),
        input_paths=(f"{bucket}/in/*",),
        output_path=f"{bucket}/out",
        runner="PortableRunner",
        max_workers=1,
    )
    log = tmp_path / "pool.log"
    with pool_options(job_server, log) as options:
        report = end(start(msgspec.structs.replace(asked, pipeline_options=options)))

    assert report.done is not None, (report, log.read_text())
    assert report.done.predictions == 300
    lines = emulator.get(f"{bucket}/out/prediction.results-00000-of-00001").splitlines()
    assert len(lines) == 300
    module, files = json.loads(lines[0])
    assert not Path(module).is_relative_to(tmp_path)
    assert files == ["model.json"]


@pytest.mark.soak  # four processes that import Beam
def test_jobs_of_one_pool_have_packages_of_their_own(tmp_path: Path, job_server: str, booster: Path) -> None:
    """Also while both are at work, and have modules of the same name."""
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    asked = []
    for name, other in (("first", "second"), ("second", "first")):
        write_rows(tmp_path / name, 10)
        predict = f"""
                    meeting = pathlib.Path({str(meeting)!r})
                    (meeting / {name!r}).touch()
                    while not (meeting / {other!r}).exists():
                        time.sleep(0.1)
                    return {name!r}
        """
        routine = write_routine(tmp_path / f"{name}-code", predict.strip())
        model = ModelSource(uri=str(booster), **routine)
        asked.append(request(tmp_path / name, model, uid=name, runner="PortableRunner", max_workers=1))
    log = tmp_path / "pool.log"
    with pool_options(job_server, log) as options:
        jobs = [start(msgspec.structs.replace(one, pipeline_options=options)) for one in asked]
        reports = [end(job) for job in jobs]

    assert all(report.done is not None for report in reports), (reports, log.read_text())
    for name in ("first", "second"):
        assert results(tmp_path / name) == f'"{name}"\n' * 10


def test_failures_are_told_in_our_words(tmp_path: Path, job_server: str, booster: Path) -> None:
    """What stops a worker arrives with its status and its sentence; too many errors fail the job."""
    damaged, hopeless = tmp_path / "damaged", tmp_path / "hopeless"
    for folder in (damaged, hopeless):
        (folder / "in").mkdir(parents=True)
    (damaged / "in/rows.gz").write_bytes(gzip.compress(b"[1, 2, 3]\n" * 1000)[:-9])
    (hopeless / "in/rows.jsonl").write_text("[1, 2, 3]\n" + "nonsense\n" * 20)
    model = ModelSource(uri=str(booster))
    jobs = [
        start(request(damaged, model, **loopback(job_server))),
        start(request(hopeless, model, max_errors="10", **loopback(job_server))),
    ]
    first, second = [end(job).failed for job in jobs]

    assert first is not None
    assert first.status == "INVALID_ARGUMENT"
    assert "rows.gz is not a whole gzip file" in first.message
    assert "\n" not in first.message
    assert second is not None
    assert second.status == "FAILED_PRECONDITION"
    assert second.message.startswith("20 of 21 records failed; at most 10 may.")
    assert (second.predictions, second.errors) == (1, 20)
    assert not list((hopeless / "out").glob("prediction.*"))


def test_a_job_that_is_ended_ends_its_pipeline(tmp_path: Path, job_server: str) -> None:
    """The runner is asked to cancel it: nothing goes on for nobody. Workers here find the user's packages."""
    (tmp_path / "slow.py").write_text(
        dedent(
            """
            import pathlib, time

            class Predictor:
                def predict(self, instances, **kwargs):
                    pathlib.Path(__file__).with_name("reached").touch()
                    time.sleep(600)

                @classmethod
                def from_path(cls, model_dir):
                    return cls()
            """
        )
    )
    write_rows(tmp_path, 10)
    model = ModelSource(model_dir=str(tmp_path), prediction_class="slow.Predictor", packages=(str(tmp_path),))
    job = start(request(tmp_path, model, **loopback(job_server)))
    until((tmp_path / "reached").exists, "a call of the model")
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=HANG_SECONDS)

    assert job.returncode == 128 + signal.SIGTERM
    states = {beam_job_api_pb2.JobState.Enum.Name(one.state) for one in jobs_of(job_server)}
    assert "CANCELLED" in states
    assert not states & {"RUNNING", "STARTING"}


def jobs_of(address: str) -> Sequence[Any]:
    import grpc

    with grpc.insecure_channel(address) as channel:
        stub = beam_job_api_pb2_grpc.JobServiceStub(channel)
        found: Sequence[Any] = stub.GetJobs(beam_job_api_pb2.GetJobsRequest(), timeout=10).job_info
        return found
