"""Which training jobs start: all replicas of a job or none."""

from __future__ import annotations

from typing import Any

import pytest

from serving.errors import FailedPrecondition
from serving.gateway.jobs.kinds.training.admission import (
    Room,
    check_fits,
    choose_due,
    count_parallel,
    explain_wait,
    measure_job,
)
from serving.gateway.state.records import JobKindName, JobRecord
from serving.resources import Job, Scheduling, TrainingInput, TrainingOptions, resource_from_json

TOTAL = Room(seats=8, memory_bytes=800, gpus=2)


def record(
    number: int, workers: int = 0, *, priority: int = 0, attempt: int = 0, memory: str = "", gpus: int = 0
) -> JobRecord:
    given = custom_input(workers, gpus)
    scheduled = resource_from_json(TrainingInput, {**given, "scheduling": {"priority": priority}})
    job = Job(
        job_id=f"j{number}",
        training_input=scheduled,
        training_options=TrainingOptions(memory_bytes=memory),
    )
    return JobRecord(
        name=f"projects/p/jobs/j{number}",
        project="p",
        uid=str(number),
        number=number,
        kind=JobKindName.TRAINING,
        job=job,
        priority=(scheduled.scheduling or Scheduling()).priority,
        attempt=attempt,
    )


def custom_input(workers: int, gpus: int = 0) -> dict[str, Any]:
    accelerator = {"acceleratorConfig": {"type": "NVIDIA_TESLA_T4", "count": str(gpus)}} if gpus else {}
    return {
        "scaleTier": "CUSTOM",
        "masterType": "n1-standard-4",
        "masterConfig": accelerator,
        "workerCount": workers,
        "workerType": "n1-standard-4",
    }


def due(*waiting: JobRecord, running: tuple[JobRecord, ...] = ()) -> list[int]:
    return [one.number for one in choose_due(waiting, running, TOTAL)]


def test_jobs_start_while_there_are_seats() -> None:
    assert due(record(1, 3), record(2, 3), record(3)) == [1, 2]


def test_all_replicas_of_a_job_or_none() -> None:
    """And nobody overtakes it: it would never have enough."""
    assert due(record(2, 5), record(3), running=(record(1, 3),)) == []


def test_priority_goes_before_age_and_what_was_interrupted_before_both() -> None:
    assert due(record(1, 7), record(2, 7, priority=5)) == [2]
    assert due(record(1, 7), record(2, 7, priority=5), record(3, 7, attempt=1)) == [3]


def test_a_job_that_waits_for_gpus_lets_others_pass() -> None:
    """They take nothing that it needs."""
    assert due(record(2, gpus=1), record(3), running=(record(1, gpus=2),)) == [3]


def test_jobs_without_a_limit_have_a_share_of_the_memory() -> None:
    """800 bytes and 8 seats: 100 for each replica."""
    assert due(record(2, 1), running=(record(1, memory="600"),)) == [2]
    assert due(record(2, 2), running=(record(1, memory="600"),)) == []


def test_why_a_job_waits() -> None:
    running = (record(1, 3),)
    waiting = (record(2, 5), record(3, 2))

    assert explain_wait(waiting[0], waiting, running, TOTAL) == (
        "The job waits for 6 seats, of which 4 of 8 are free and 600 bytes of memory, of which 400 of 800 "
        "are free."
    )
    assert explain_wait(waiting[1], waiting, running, TOTAL) == "The job waits behind j2."


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ({"scaleTier": "STANDARD_1"}, {}, None),
        ({"scaleTier": "PREMIUM_1"}, {}, r"training_input\.scale_tier .*31 replicas.*seats for 8.*Up to 7"),
        (custom_input(8), {}, r"training_input\.worker_count .*9 replicas"),
        (custom_input(0, gpus=4), {}, r"master_config\.accelerator_config .*4 GPUs.*has 2 \(setting gpus\)"),
        ({}, {"memoryBytes": "801"}, r"training_options\.memory_bytes .*801 bytes.*800"),
    ],
)
def test_a_job_that_can_never_start_is_refused(given: Any, options: Any, message: str | None) -> None:
    asked = resource_from_json(TrainingInput, given), resource_from_json(TrainingOptions, options)
    if message is None:
        check_fits(*asked, TOTAL)
    else:
        with pytest.raises(FailedPrecondition, match=message):
            check_fits(*asked, TOTAL)


@pytest.mark.parametrize(
    ("workers", "gpus", "parallel", "expected"),
    [(0, 0, 5, 5), (0, 0, 20, 8), (3, 0, 4, 2), (0, 1, 4, 2), (7, 0, 4, 1)],
)
def test_as_many_trials_run_at_a_time_as_there_is_room_for(
    workers: int, gpus: int, parallel: int, expected: int
) -> None:
    params = [{"parameterName": "rate", "type": "DOUBLE", "maxValue": 1}]
    spec = {"maxTrials": 50, "maxParallelTrials": parallel, "params": params}
    given = resource_from_json(TrainingInput, {**custom_input(workers, gpus), "hyperparameters": spec})
    needed = measure_job(given, TrainingOptions(), TOTAL)

    assert count_parallel(given, TrainingOptions(), TOTAL) == expected
    assert needed.seats == (1 + workers) * expected
    assert needed.gpus == gpus * expected
    check_fits(given, TrainingOptions(), TOTAL)
