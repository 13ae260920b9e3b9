"""The queue and the processes of jobs: real processes, which do what a test says (`fake_job`)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from autoscaler.child_launcher import module_command
from autoscaler.supervision import Supervisor
from batch.messages import JobPhase, JobRequest
from serving.config import ServeConfig
from serving.gateway.catalog import Catalog, models, versions
from serving.gateway.catalog import jobs as rules
from serving.gateway.jobs.job_queue import JobQueue, JobTiming
from serving.gateway.jobs.kinds.prediction.prediction_kind import PredictionKind
from serving.gateway.state.catalog_state import Commit
from serving.gateway.state.records import DeploymentInfo, JobRecord
from serving.gateway.state.store import SqliteStore
from serving.names import ModelName, VersionName
from serving.resources import Job, JobState, Model, Operation, Version, resource_from_json
from tests.bounds import HANG_SECONDS

FAKE = module_command("tests.serving.gateway.fake_job")
PACE = JobTiming(silence_seconds=60.0, retry_delays=(0.01,), save_interval=0.0, error_retry_delay=0.05)
M, V1 = ModelName("p", "m"), VersionName("p", "m", "v1")


class Disk(SqliteStore):
    """A store that is full when a test says so."""

    full = False

    def commit(self, changes: Mapping[tuple[str, str], Any]) -> None:
        if self.full:
            raise OSError("No space left on device")
        super().commit(changes)


class NoOperations:
    """Predictions become no versions."""

    async def check_sources(self, version: Version) -> None:
        raise AssertionError(version)

    def begin(self, operation: Operation) -> None:
        raise AssertionError(operation)


class World:
    """A catalog on disk and the jobs at work on it, as a server has them from its start to its stop."""

    def __init__(
        self, folder: Path, command: tuple[str, ...] = FAKE, pace: JobTiming = PACE, **settings: Any
    ):
        self.folder = folder
        (folder / "state").mkdir(exist_ok=True)
        self.disk = Disk(folder / "state" / "state.db")
        self.catalog = Catalog(self.disk, self._published)
        self.supervisor = Supervisor()
        self.seen: list[tuple[str, JobState | None]] = []
        self.config = ServeConfig(state_dir=folder / "state", **settings)
        self.kind = PredictionKind(self.config, dict(os.environ), command, grace_seconds=2.0)
        self.jobs: JobQueue = JobQueue(
            self.catalog, self.supervisor, [self.kind], NoOperations(), folder / "state" / "jobs", timing=pace
        )

    def _published(self, commit: Commit) -> None:
        self.jobs.fail_orphaned_jobs(commit.after)
        for record in commit.after.jobs.values():
            if (record.job.job_id, record.job.state) not in self.seen:
                self.seen.append((record.job.job_id, record.job.state))

    async def open(self) -> None:
        await self.catalog.open()
        await self.supervisor.__aenter__()
        self.jobs.remove_stale_files(self.catalog.state)
        self.jobs.resume()

    async def close(self) -> None:
        await self.jobs.suspend()
        await self.supervisor.__aexit__(None, None, None)
        self.catalog.close()

    async def version(self, name: str) -> None:
        """A READY version of the model."""
        version = Version(name=name, deployment_uri="gs://b/m", prediction_class="x.Y", package_uris=("p",))
        operation = await self.catalog.change(versions.create_version, M, version)
        deployed = DeploymentInfo(model_dir="/models/v1", packages=("/packages",), framework="CUSTOM")
        await self.catalog.change(versions.finish_create, operation.name, deployed, ())

    async def submit(self, job: str, *script: str, options: Any = None, **changes: Any) -> None:
        """A job whose process does what the script says; its output folder has its name."""
        given = {
            "uri": "/model", "dataFormat": "JSON", "inputPaths": [f"/{step}" for step in script] or ["/run"],
            "outputPath": str(self.out(job)), "region": "r", **changes,
        }  # fmt: skip
        given = {key: value for key, value in given.items() if value is not None}
        self.out(job).mkdir(parents=True, exist_ok=True)
        wire = {"jobId": job, "predictionInput": given, "batchOptions": options}
        sent = rules.SentJobFields(given, options or {})
        await self.catalog.change(
            rules.create_job, self.kind, "p", resource_from_json(Job, wire), sent=sent, most=100
        )
        self.jobs.start_due_jobs()

    def out(self, job: str) -> Path:
        return self.folder / "out" / job

    def record(self, job: str) -> JobRecord:
        return self.catalog.state.jobs[rules.job_name("p", job)]

    def state(self, job: str) -> JobState | None:
        return self.record(job).job.state

    def message(self, job: str) -> str:
        return self.record(job).job.error_message

    def counts(self, job: str) -> tuple[str, str]:
        output = self.jobs.with_current_output(self.record(job)).job.prediction_output
        assert output is not None
        return output.prediction_count, output.error_count

    async def cancel(self, job: str) -> None:
        await self.jobs.cancel(rules.job_name("p", job))

    def started(self, job: str, attempt: int = 1) -> Path:
        return self.out(job) / f"started.{attempt}"

    async def until_started(self, job: str, attempt: int = 1) -> int:
        """The pid of an attempt once it is at work."""
        await self.until(self.started(job, attempt).exists)
        return int(self.started(job, attempt).read_text())

    async def until_ended(self, job: str) -> JobState | None:
        await self.until(lambda: self.record(job).has_ended)
        return self.state(job)

    async def until(self, reached: Callable[[], bool]) -> None:
        while not reached():  # noqa: ASYNC110  other processes take part: there is no event for it
            await asyncio.sleep(0.005)

    def request(self, job: str, attempt: int = 1) -> JobRequest:
        return msgspec.json.decode((self.out(job) / f"request.{attempt}").read_bytes(), type=JobRequest)

    def attempts(self, job: str) -> int:
        assert not (self.out(job) / "overlap").exists()
        return len(list(self.out(job).glob("request.*")))

    def cleaned(self, job: str) -> bool:
        return (self.out(job) / "cleaned").exists()


def run(*mains: Callable[[World], Awaitable[None]], folder: Path, **details: Any) -> None:
    """Each on a server of its own, started on what the one before has left."""

    async def bounded() -> None:
        async with asyncio.timeout(HANG_SECONDS):
            for main in mains:
                world = World(folder, **details)
                await world.open()
                try:
                    await main(world)
                finally:
                    await world.close()

    asyncio.run(bounded())


def alive(pid: int) -> bool:
    """Whether a process works; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# ---- the straight line


def test_a_job_from_queued_to_succeeded(tmp_path: Path) -> None:
    """Each state is seen once; only its log is left."""

    async def main(world: World) -> None:
        await world.submit("a", "log/hello", "run", "count/90/10", "publish")

        assert await world.until_ended("a") is JobState.SUCCEEDED
        assert [state for _, state in world.seen] == ["QUEUED", "PREPARING", "RUNNING", "SUCCEEDED"]
        assert world.counts("a") == ("90", "10")
        assert world.record("a").job.prediction_output.node_hours == 0.01  # type: ignore[union-attr]
        assert world.attempts("a") == 1
        assert not world.cleaned("a")
        await world.until(lambda: not world.jobs._active_jobs)
        folder = tmp_path / "state" / "jobs" / world.record("a").uid
        assert [entry.name for entry in folder.iterdir()] == ["log"]
        assert world.jobs.job_log(world.record("a")).read_tail(20) == ["hello"]

    run(main, folder=tmp_path)


def test_what_a_process_is_asked_for(tmp_path: Path) -> None:
    """The version as its nodes have it, what was sent, and the server's settings."""

    async def main(world: World) -> None:
        await world.catalog.change(models.create_model, "p", Model(name="m"))
        await world.version("v1")
        await world.submit(
            "a", uri=None, modelName=str(M), batchSize=32, maxWorkerCount="3", signatureName="s",
            outputDataFormat="CSV", dataFormat="TF_RECORD", options={"keys": ["id"], "maxErrors": 5},
        )  # fmt: skip
        await world.until_ended("a")
        record, found = world.record("a"), world.request("a")

        environment = msgspec.json.decode(found.model.environment.pop("create_version_request"))
        assert environment["version"]["prediction_class"] == "x.Y"
        assert msgspec.structs.asdict(found) == {
            "job": "projects/p/jobs/a",
            "uid": record.uid,
            "attempt": 1,
            "model": found.model,
            "input_paths": ("/run",),
            "output_path": str(world.out("a")),
            "data_format": "TF_RECORD",
            "output_format": "CSV",
            "batch_size": 32,
            "max_workers": 3,
            "region": "r",
            "signature_name": "s",
            "keys": ("id",),
            "max_errors": "5",
            "runner": "SparkRunner",
            "pipeline_options": ("--name=a b", "--x"),
            "scratch_dir": str(tmp_path / "state" / "jobs" / record.uid),
            "cache_dir": str(tmp_path / "state" / "cache"),
            "cache_bytes": world.config.cache_bytes,
            "clean": False,
            "allowed_folders": (),
            "refused_folders": (str(tmp_path / "state"), "/proc", "/sys", "/dev"),
            "bare": False,
            "long_decimals": False,
        }
        assert msgspec.structs.asdict(found.model) == {
            "model_dir": "/models/v1",
            "uri": "gs://b/m",
            "framework": "CUSTOM",
            "prediction_class": "x.Y",
            "method": "",
            "packages": ("/packages",),
            "package_uris": ("p",),
            "environment": {},
            "interpreter": "",
        }

    run(main, folder=tmp_path, batch_runner="SparkRunner", batch_options="'--name=a b' --x")


def test_a_job_with_a_runner_and_a_model_of_its_own(tmp_path: Path) -> None:
    """The server's options are for the server's runner; what a job may say comes behind them."""

    async def main(world: World) -> None:
        await world.submit("a", options={"runner": "FnApiRunner"})
        await world.submit("b", options={"pipelineOptions": ["--num_workers=2"]})
        await world.until_ended("a")
        await world.until_ended("b")
        first, second = world.request("a"), world.request("b")

        assert (first.runner, first.pipeline_options) == ("FnApiRunner", ())
        assert second.runner == "FlinkRunner"
        assert second.pipeline_options == ("--server", "--num_workers=2")
        assert (first.model.uri, first.model.model_dir) == ("/model", "")
        assert (first.batch_size, first.max_workers, first.output_format) == (0, 10, "JSON")

    run(main, folder=tmp_path, batch_runner="FlinkRunner", batch_options="--server")


def test_jobs_wait_for_their_turn(tmp_path: Path) -> None:
    """So many at a time, in the order of their creation; what is cancelled makes room."""

    async def main(world: World) -> None:
        for job in ("c", "a", "d", "b"):
            await world.submit(job, "wait/go")
        await world.until_started("c")
        await world.until_started("a")
        places = rules.list_queue_positions(world.catalog.state)
        assert {name.rpartition("/")[2]: place for name, place in places.items()} == {"d": 1, "b": 2}

        await world.cancel("d")
        (world.out("a") / "go").touch()
        await world.until_started("b")
        assert world.state("c") is JobState.PREPARING
        (world.out("c") / "go").touch()
        (world.out("b") / "go").touch()

        for job in ("c", "a", "b"):
            assert await world.until_ended(job) is JobState.SUCCEEDED
        assert not world.started("d").exists()

    run(main, folder=tmp_path, jobs=2)


def test_counts_are_shown_at_once_and_written_down_now_and_then(tmp_path: Path) -> None:
    """The phase, the bytes and the workers are not written down at all."""

    async def main(world: World) -> None:
        await world.submit("a", "count/1/0", "run", "count/2/0", "chatter", "count/30/4", "wait/go")
        await world.until(lambda: world.counts("a") == ("30", "4"))
        record = world.record("a")
        written, progress = record.job.prediction_output, world.jobs.render_progress(record)

        assert written is not None
        assert (record.job.state, written.prediction_count) == (JobState.RUNNING, "1")
        assert progress["phase"] is JobPhase.RUNNING
        assert (progress["bytes"], progress["bytesTotal"], progress["workers"]) == (30, 100, 2)

    run(main, folder=tmp_path, pace=JobTiming(save_interval=100.0))


# ---- ends before its time


def test_a_failure_that_the_process_tells_is_final(tmp_path: Path) -> None:
    """It has cleaned up itself."""

    async def main(world: World) -> None:
        await world.submit("a", "run", "count/5/2", "fail/No such file.")

        assert await world.until_ended("a") is JobState.FAILED
        assert world.message("a") == "No such file."
        assert world.counts("a") == ("5", "2")
        assert world.attempts("a") == 1
        assert not world.cleaned("a")

    run(main, folder=tmp_path)


def test_a_queued_job_is_cancelled_without_a_trace(tmp_path: Path) -> None:
    """No process is started for it."""

    async def main(world: World) -> None:
        await world.submit("a", "wait/go")
        await world.submit("b")
        await world.cancel("b")

        assert world.state("b") is JobState.CANCELLED
        (world.out("a") / "go").touch()
        await world.until_ended("a")
        await world.until(lambda: not world.jobs._active_jobs)
        assert not list(world.out("b").iterdir())

    run(main, folder=tmp_path, jobs=1)


@pytest.mark.parametrize(
    "script", [("wait/go",), ("run", "count/7/0", "wait/go"), ("deaf", "helper", "hush")]
)
def test_a_job_at_work_is_cancelled(tmp_path: Path, script: tuple[str, ...]) -> None:
    """CANCELLING at once; CANCELLED when all its processes and its files are gone."""

    async def main(world: World) -> None:
        await world.submit("a", *script)
        pid = await world.until_started("a")
        if "helper" in script:
            await world.until((world.out("a") / "helper").exists)
        if "count/7/0" in script:
            await world.until(lambda: world.counts("a") == ("7", ""))
        await world.cancel("a")
        assert world.state("a") is JobState.CANCELLING

        assert await world.until_ended("a") is JobState.CANCELLED
        assert not alive(pid)
        if "helper" in script:
            assert not alive(int((world.out("a") / "helper").read_text()))
        assert world.cleaned("a")
        assert world.attempts("a") == 1
        assert world.counts("a") == ("7" if "count/7/0" in script else "", "")
        assert world.message("a") == "The job was cancelled."

    run(main, folder=tmp_path, pace=JobTiming(save_interval=100.0))


def test_a_job_is_cancelled_between_two_attempts(tmp_path: Path) -> None:
    """It does not wait for the next one."""

    async def main(world: World) -> None:
        await world.submit("a", "exit/1")
        await world.until(lambda: world.record("a").lost == 1)
        await world.cancel("a")

        assert await world.until_ended("a") is JobState.CANCELLED
        assert world.attempts("a") == 1
        assert world.cleaned("a")

    run(main, folder=tmp_path, pace=JobTiming(retry_delays=(60.0,)))


def test_a_cancel_that_comes_too_late(tmp_path: Path) -> None:
    """The results are there, and the job says so."""

    async def main(world: World) -> None:
        await world.submit("a", "run", "count/3/0", "late", "mark/published", "hush")
        await world.until((world.out("a") / "published").exists)
        await world.cancel("a")

        assert await world.until_ended("a") is JobState.SUCCEEDED
        assert not world.cleaned("a")

    run(main, folder=tmp_path)


def test_files_that_cannot_be_removed_are_told_of(tmp_path: Path) -> None:
    """With the reason; the job ends all the same."""

    async def main(world: World) -> None:
        await world.submit("a", "stains", "wait/go")
        await world.until_started("a")
        await world.cancel("a")

        assert await world.until_ended("a") is JobState.CANCELLED
        assert world.message("a") == (
            f"The job was cancelled. Temporary files may be left in {world.out('a')}/.pilotlight: Not yours."
        )

    run(main, folder=tmp_path)


# ---- lost attempts


def test_a_lost_attempt_is_followed_by_another(tmp_path: Path) -> None:
    """However it was lost; never are two at work at once."""

    async def main(world: World) -> None:
        await world.submit("a", "helper", "run", "count/1/1", "die/2", "count/8/0")

        assert await world.until_ended("a") is JobState.SUCCEEDED
        assert world.attempts("a") == 3
        assert world.counts("a") == ("8", "")
        assert not world.cleaned("a")
        assert [state for _, state in world.seen] == ["QUEUED", "PREPARING", "RUNNING", "SUCCEEDED"]
        log = "\n".join(world.jobs.job_log(world.record("a")).read_tail(20))
        assert "SERVER The job's process was killed from outside (signal SIGKILL)" in log
        assert "SERVER attempt 3" in log

    run(main, folder=tmp_path)


def test_after_four_lost_attempts_a_job_fails(tmp_path: Path) -> None:
    """With how the last one ended and its last words; its files are removed."""

    async def main(world: World) -> None:
        await world.submit("a", "log/out of cheese", "exit/3")

        assert await world.until_ended("a") is JobState.FAILED
        assert world.attempts("a") == 4
        assert world.cleaned("a")
        assert world.message("a").startswith(
            "4 attempts were lost. The job's process ended with exit code 3."
        )
        assert "out of cheese" in world.message("a")
        assert "pilotlight jobs stream-logs a" in world.message("a")

    run(main, folder=tmp_path)


def test_a_silent_process_is_lost(tmp_path: Path) -> None:
    """It is killed, with all it has started."""

    async def main(world: World) -> None:
        await world.submit("a", "deaf", "helper", "hush")
        assert await world.until_ended("a") is JobState.FAILED

        assert "said nothing for 1.5 s" in world.message("a")
        # On a busy machine some may have been killed before they began.
        started = [path for attempt in range(1, 5) if (path := world.started("a", attempt)).exists()]
        assert started
        assert not any(alive(int(path.read_text())) for path in started)

    run(main, folder=tmp_path, pace=JobTiming(silence_seconds=1.5, retry_delays=(0.01,)))


def test_a_program_that_cannot_be_started(tmp_path: Path) -> None:
    """The job fails, with the reason."""

    async def main(world: World) -> None:
        await world.submit("a")

        assert await world.until_ended("a") is JobState.FAILED
        assert "could not be started" in world.message("a")
        assert "Temporary files may be left" in world.message("a")

    run(main, folder=tmp_path, command=("/nonsense",), pace=JobTiming(retry_delays=(0.01,)))


def test_a_disk_that_is_full_delays_the_end(tmp_path: Path) -> None:
    """The job goes on by itself when there is room again; others are not touched."""

    async def main(world: World) -> None:
        await world.submit("a", "run", "wait/go")
        await world.until(lambda: world.state("a") is JobState.RUNNING)
        world.disk.full = True
        (world.out("a") / "go").touch()
        pid = int(world.started("a").read_text())
        await world.until(lambda: not alive(pid))
        assert world.state("a") is JobState.RUNNING

        world.disk.full = False
        assert await world.until_ended("a") is JobState.SUCCEEDED

    run(main, folder=tmp_path)


# ---- versions


@pytest.mark.parametrize("anew", [False, True])
def test_a_version_that_is_deleted_takes_its_jobs_with_it(tmp_path: Path, anew: bool) -> None:
    """Those that work and those that wait, also when it is made anew; others go on."""

    async def main(world: World) -> None:
        await world.catalog.change(models.create_model, "p", Model(name="m"))
        await world.version("v1")
        by_version = {"uri": None, "versionName": str(V1)}
        await world.submit("at_work", "run", "wait/go", **by_version)
        await world.submit("other", "wait/go")
        await world.submit("waiting", **by_version)
        pid = await world.until_started("at_work")
        operation = await world.catalog.change(versions.delete_version, V1)
        if anew:
            await world.catalog.change(versions.finish_delete, operation.name)
            await world.version("v1")

        for job in ("at_work", "waiting"):
            assert await world.until_ended(job) is JobState.FAILED
            assert world.message(job).startswith(f"The version {V1} was deleted while the job was using it.")
        assert not alive(pid)
        assert world.cleaned("at_work")
        assert world.attempts("waiting") == 0
        (world.out("other") / "go").touch()
        assert await world.until_ended("other") is JobState.SUCCEEDED

    run(main, folder=tmp_path)


# ---- restarts


def test_a_stop_leaves_no_process_and_a_start_begins_anew(tmp_path: Path) -> None:
    """With the next attempt, which is not counted as lost; the order stays."""
    pids: list[int] = []

    async def before(world: World) -> None:
        await world.submit("z", "run", "count/5/0", "helper", "wait/go")
        await world.submit("a")
        await world.until(lambda: world.counts("z") == ("5", ""))
        await world.until((world.out("z") / "helper").exists)
        pids.extend([await world.until_started("z"), int((world.out("z") / "helper").read_text())])

    async def after(world: World) -> None:
        assert not any(alive(pid) for pid in pids)
        await world.until_started("z", 2)
        assert world.state("z") is JobState.RUNNING
        assert world.state("a") is JobState.QUEUED

        (world.out("z") / "go").touch()
        assert await world.until_ended("z") is JobState.SUCCEEDED
        assert (world.record("z").attempt, world.record("z").lost) == (2, 0)
        assert await world.until_ended("a") is JobState.SUCCEEDED

    run(before, after, folder=tmp_path, jobs=1)


def test_what_was_ending_is_ended_by_the_next_server(tmp_path: Path) -> None:
    """A cancelled job is cleaned and CANCELLED, one that was to fail FAILED; neither starts again."""

    async def before(world: World) -> None:
        for job in ("cancelled", "doomed"):
            await world.submit(job, "wait/go")
            await world.until_started(job)

    async def between(world: World) -> None:
        """The server was killed right after these were written down."""
        name = rules.job_name("p", "cancelled")
        await world.catalog.change(rules.cancel_job, name)
        await world.catalog.change(rules.mark_failing, rules.job_name("p", "doomed"), "Its model is gone.")

    async def after(world: World) -> None:
        assert await world.until_ended("cancelled") is JobState.CANCELLED
        assert await world.until_ended("doomed") is JobState.FAILED
        for job in ("cancelled", "doomed"):
            assert world.attempts(job) == 1
            assert world.cleaned(job)

    async def edited() -> None:
        world = World(tmp_path)
        await world.catalog.open()
        await between(world)
        world.catalog.close()

    run(before, folder=tmp_path)
    asyncio.run(edited())
    run(after, folder=tmp_path)


def test_a_version_that_went_while_the_server_was_down(tmp_path: Path) -> None:
    """Its jobs fail at the start."""

    async def before(world: World) -> None:
        await world.catalog.change(models.create_model, "p", Model(name="m"))
        await world.version("v1")
        await world.submit("a", "wait/go", uri=None, modelName=str(M))
        await world.until_started("a")

    async def after(world: World) -> None:
        assert await world.until_ended("a") is JobState.FAILED
        assert world.attempts("a") == 1

    async def edited() -> None:
        world = World(tmp_path)
        await world.catalog.open()
        await world.catalog.change(versions.delete_version, V1)
        world.catalog.close()

    run(before, folder=tmp_path)
    asyncio.run(edited())
    run(after, folder=tmp_path)


def test_local_files_of_the_past_are_removed(tmp_path: Path) -> None:
    """All of a job that is unknown; of one that has ended, all but the log."""

    async def before(world: World) -> None:
        await world.submit("a", "log/hello")
        await world.until_ended("a")
        await world.until(lambda: not world.jobs._active_jobs)
        folder = tmp_path / "state" / "jobs" / world.record("a").uid
        (folder / "meters").mkdir()
        (folder / "lock").touch()
        (tmp_path / "state" / "jobs" / "unknown" / "x").mkdir(parents=True)

    async def after(world: World) -> None:
        found = [path for path in (tmp_path / "state" / "jobs").rglob("*") if path.is_file()]

        assert [path.name for path in found] == ["log"]
        assert not (tmp_path / "state" / "jobs" / "unknown").exists()

    run(before, after, folder=tmp_path)


def test_a_killed_process_after_another(tmp_path: Path) -> None:
    """From outside, at no point in particular, as a machine short of memory does."""

    async def main(world: World) -> None:
        await world.submit("a", "run", "count/9/0", "wait/go")
        for attempt in (1, 2, 3):
            os.kill(await world.until_started("a", attempt), signal.SIGKILL)
        (world.out("a") / "go").touch()

        assert await world.until_ended("a") is JobState.SUCCEEDED
        assert world.attempts("a") == 4

    run(main, folder=tmp_path)


# ---- the code of models


def test_a_job_sees_of_the_environment_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials of storage, for it reads and writes there, and no other secrets; it can gain no rights."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/key.json")
    monkeypatch.setenv("DATABASE_PASSWORD", "secret")
    monkeypatch.setenv("FEATURES", "given")

    async def main(world: World) -> None:
        await world.submit("j", "run", "wait/go")
        process = Path("/proc", str(await world.until_started("j")))
        seen = dict(line.split("=", 1) for line in (process / "environ").read_text().split("\0") if line)
        status = (process / "status").read_text()
        (world.out("j") / "go").touch()
        await world.until_ended("j")

        assert seen["GOOGLE_APPLICATION_CREDENTIALS"] == "/key.json"
        assert seen["FEATURES"] == "given"
        assert "DATABASE_PASSWORD" not in seen
        assert "NoNewPrivs:\t1" in status

    run(main, folder=tmp_path, node_environment="FEATURES")


def test_a_job_whose_model_is_trusted_no_more_fails(tmp_path: Path) -> None:
    """It was queued before the setting changed; its process is not even started."""

    async def main(world: World) -> None:
        await world.submit("j", "run")

        assert await world.until_ended("j") is JobState.FAILED
        assert "/model is no source that this server trusts" in world.message("j")
        assert not world.started("j").exists()

    run(main, folder=tmp_path, trusted_sources="gs://models")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"runner": "FlinkRunner"}, "setting batch_runner"),
        ({"pipelineOptions": ["--job_server_java_launcher=sh"]}, "setting batch_options"),
        (None, "local_folders"),
    ],
)
def test_what_a_job_may_have_is_asked_again_before_it_starts(
    tmp_path: Path, options: dict[str, Any] | None, reason: str
) -> None:
    """It may have been queued under other settings, or by an earlier release."""

    async def main(world: World) -> None:
        await world.submit("j", "run", options=options)

        assert await world.until_ended("j") is JobState.FAILED
        assert reason in world.message("j")
        assert not world.started("j").exists()

    run(main, folder=tmp_path, local_folders="" if options else "/elsewhere")
