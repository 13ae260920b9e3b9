"""What is forgotten of jobs and operations, and when."""

from __future__ import annotations

import datetime
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from serving.gateway.access.policy import Policy
from serving.gateway.catalog import jobs as rules
from serving.gateway.catalog import models, operations, policies
from serving.gateway.control.retention import RecordPruner, RetentionPolicy
from serving.gateway.state.sorted_index import SortedSequence
from serving.names import ModelName
from serving.resources import JobState, Model, format_timestamp
from tests.serving.gateway.job_world import World, run

NOW = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)


def clock_at(moment: datetime.datetime) -> Callable[[], Awaitable[datetime.datetime]]:
    async def read_clock() -> datetime.datetime:
        return moment

    return read_clock


def ended(*days_ago: float) -> SortedSequence[tuple[str, str]]:
    return SortedSequence.from_values(
        (format_timestamp(NOW - datetime.timedelta(days=days)), f"d{days:g}") for days in days_ago
    )


@pytest.mark.parametrize(
    ("retention", "expected"),
    [
        (RetentionPolicy(0, 0), []),
        (RetentionPolicy(10, 0), ["d20", "d11"]),
        (RetentionPolicy(0, 2), ["d20", "d11"]),
        (RetentionPolicy(10, 1), ["d20", "d11", "d9"]),
        (RetentionPolicy(15, 3), ["d20"]),
        (RetentionPolicy(30, 4), []),
    ],
)
def test_what_is_due(retention: RetentionPolicy, expected: list[str]) -> None:
    """What ended too long ago, or before the last so many; the first to end first."""
    assert list(retention.list_due(ended(1, 20, 9, 11), NOW)) == expected


def test_a_step_is_bounded() -> None:
    """Others need not wait for all that is due."""
    due = RetentionPolicy(1, 0).list_due(ended(*range(2, 1000)), NOW)

    assert len(due) == 100
    assert due[0] == "d999"


def test_jobs_are_forgotten_with_all_that_belongs_to_them(tmp_path: Path) -> None:
    """Record, policy and files, in several steps; who is at work stays, and numbers go on."""

    async def main(world: World) -> None:
        for number in range(3):
            await world.submit(f"j{number}", "run")
            await world.until_ended(f"j{number}")
        await world.submit("busy", "wait/go")
        await world.until_started("busy")
        await world.until(lambda: not world.jobs.is_working_on(rules.job_name("p", "j2")))
        folders = {
            name: world.folder / "state" / "jobs" / world.record(name).uid for name in ("j0", "j2", "busy")
        }
        await world.catalog.change(policies.set_policy, rules.job_name("p", "j0"), Policy())
        pruner = RecordPruner(world.catalog, world.jobs, world.config, clock_at(NOW))
        await pruner.prune()

        assert [name for _, name in rules.list_jobs(world.catalog.state, "p")] == [
            rules.job_name("p", "busy"), rules.job_name("p", "j2"),
        ]  # fmt: skip
        assert not world.catalog.state.policies
        assert not folders["j0"].exists()
        assert folders["j2"].exists()
        assert folders["busy"].exists()
        assert not world.record("busy").has_ended
        assert world.record("busy").number == 4
        (world.out("busy") / "go").touch()
        await world.until_ended("busy")

    run(main, folder=tmp_path, job_retention_count=1, job_retention_days=0)


def test_a_forgotten_job_is_not_there_after_a_restart(tmp_path: Path) -> None:
    """And its id may be taken again."""

    async def main(world: World) -> None:
        await world.submit("j", "run")
        await world.until_ended("j")
        await world.until(lambda: not world.jobs.is_working_on(rules.job_name("p", "j")))
        later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=3)
        early, late = (
            RecordPruner(world.catalog, world.jobs, world.config, clock_at(when))
            for when in (later - datetime.timedelta(days=2), later)
        )
        await early.prune()
        assert world.state("j") is JobState.SUCCEEDED
        await late.prune()

        assert not world.disk.load().jobs
        await world.submit("j", "run")
        await world.until_ended("j")

    run(main, folder=tmp_path, job_retention_days=2)


def test_operations_are_forgotten_by_age_and_number(tmp_path: Path) -> None:
    """Those that are done."""

    async def main(world: World) -> None:
        await world.catalog.change(models.create_model, "p", Model(name="m"))
        await world.version("v9")
        model = ModelName("p", "m")
        for number in range(4):
            body = Model(description=f"{number}")
            await world.catalog.change(models.update_model, model, body, ["description"])
        names = [name for _, name in operations.list_operations(world.catalog.state, "p")]
        await RecordPruner(world.catalog, world.jobs, world.config).prune()

        assert len(names) == 5
        left = [name for _, name in operations.list_operations(world.catalog.state, "p")]
        assert len(left) == 2
        assert set(left) <= set(names)

    run(main, folder=tmp_path, operation_retention_count=2)
