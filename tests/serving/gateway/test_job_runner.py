"""The queue and the processes of jobs: real processes, which do what a test says (`fake_job`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from batch.messages import JobPhase
from serving.gateway.catalog import jobs as rules
from serving.gateway.catalog import models, versions
from serving.gateway.jobs.job_queue import JobTiming
from serving.resources import JobState, Model
from tests.serving.gateway.job_world import V1, M, World, alive, run

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
        assert world.notes("a") == ["The job was cancelled."]

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
