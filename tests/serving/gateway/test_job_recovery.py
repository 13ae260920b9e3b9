"""What becomes of jobs whose process is lost, and of those that a server finds at its start."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from pathlib import Path

import pytest

from serving.gateway import catalog
from serving.gateway.catalog import jobs as rules
from serving.gateway.catalog import models, versions
from serving.gateway.jobs.job_kind import ForkPlan, JobAttempt
from serving.gateway.jobs.job_queue import JobTiming
from serving.resources import JobState, Model
from tests.serving.gateway.job_world import V1, M, World, alive, run

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
        assert world.notes("a")[-1] == "Attempt 3 begins."

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


def test_a_disk_that_is_full_delays_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job ends by itself when there is room again; what is done is not done again."""
    monkeypatch.setattr(catalog, "_RETRY_DELAY", 0.05)

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
        assert world.attempts("a") == 1

    run(main, folder=tmp_path)


def test_errors_of_the_server_end_a_job_after_a_few_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the reason; what its attempts have left behind is removed, and the next job starts."""

    async def main(world: World) -> None:
        tries: list[object] = []

        def fail(attempt: object) -> None:
            tries.append(attempt)
            raise LookupError("no plan")

        monkeypatch.setattr(world.kind, "plan_fork", fail)
        await world.submit("a")

        assert await world.until_ended("a") is JobState.FAILED
        assert len(tries) == 4
        assert world.message("a").startswith(
            "The server failed at this job 4 times in a row: LookupError: no plan. That is no fault of"
        )
        assert world.notes("a")[-1] == world.message("a")
        assert world.cleaned("a")
        monkeypatch.undo()
        await world.submit("b")
        assert await world.until_ended("b") is JobState.SUCCEEDED

    run(main, folder=tmp_path)


def test_errors_of_the_server_while_a_job_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ended all the same, and told what may be left."""

    async def main(world: World) -> None:
        def fail(*_: object) -> None:
            raise LookupError("no cleanup")

        monkeypatch.setattr(world.kind, "create_cleanup", fail)
        await world.submit("a", "wait/go")
        await world.until_started("a")
        await world.cancel("a")

        assert await world.until_ended("a") is JobState.CANCELLED
        assert world.message("a") == (
            "The job was cancelled. Temporary files may be left in "
            f"{world.out('a')}/.pilotlight: LookupError: no cleanup"
        )

    run(main, folder=tmp_path)


def test_a_job_waits_for_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is tried meanwhile."""

    async def main(world: World) -> None:
        tries = 0
        plan_fork = world.kind.plan_fork

        def fail(attempt: JobAttempt) -> ForkPlan | None:
            nonlocal tries
            tries += 1
            if tries < 9:
                raise OSError(errno.ENOSPC, "No space left on device")
            return plan_fork(attempt)

        monkeypatch.setattr(world.kind, "plan_fork", fail)
        await world.submit("a")

        assert await world.until_ended("a") is JobState.SUCCEEDED

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
        assert world.notes("z") == [
            "The server stops. The job goes on when the server is started again.",
            "The server has started, and the job goes on. Attempt 2 begins.",
        ]
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
        await world.catalog.change(rules.fail_job, rules.job_name("p", "doomed"), "Its model is gone.")

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
