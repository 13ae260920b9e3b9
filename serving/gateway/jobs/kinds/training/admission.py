"""Which training jobs may start: all replicas of a job or none, by seats, memory and GPUs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from serving.errors import FailedPrecondition, field_error
from serving.gateway.catalog.job_checks.training_replicas import CUSTOM, list_replica_groups, scale_tier
from serving.gateway.catalog.job_checks.tuning_checks import read_plan
from serving.gateway.state.records import JobRecord
from serving.resources import TrainingInput, TrainingOptions


@dataclass(frozen=True, slots=True)
class Room:
    """What jobs take up, or may: replicas, bytes of memory, GPUs."""

    seats: int = 0
    memory_bytes: int = 0
    gpus: int = 0

    def __add__(self, other: Room) -> Room:
        return Room(self.seats + other.seats, self.memory_bytes + other.memory_bytes, self.gpus + other.gpus)

    def __sub__(self, other: Room) -> Room:
        return Room(self.seats - other.seats, self.memory_bytes - other.memory_bytes, self.gpus - other.gpus)

    def __mul__(self, count: int) -> Room:
        return Room(self.seats * count, self.memory_bytes * count, self.gpus * count)

    def contains(self, other: Room) -> bool:
        """Whether there is enough; what is not needed may be over-committed."""
        pairs = (
            (other.seats, self.seats),
            (other.memory_bytes, self.memory_bytes),
            (other.gpus, self.gpus),
        )
        return all(not needed or needed <= there for needed, there in pairs)


def measure_job(given: TrainingInput, options: TrainingOptions, total: Room) -> Room:
    """What a job needs, with all trials that it runs at a time."""
    return measure_run(given, options, total) * count_parallel(given, options, total)


def count_parallel(given: TrainingInput, options: TrainingOptions, total: Room) -> int:
    """How many trials run at a time: not more than there is room for. 1 for jobs without trials."""
    if given.hyperparameters is None:
        return 1
    wanted, run = read_plan(given.hyperparameters).max_parallel, measure_run(given, options, total)
    return next((count for count in range(wanted, 1, -1) if total.contains(run * count)), 1)


def measure_run(given: TrainingInput, options: TrainingOptions, total: Room) -> Room:
    """What one run of all replicas needs.

    Without a limit of its own it has a share of all memory by its number of replicas.
    """
    groups = list_replica_groups(given)
    seats = sum(group.number for group in groups)
    memory = int(options.memory_bytes or 0) if total.memory_bytes else 0
    share = min(total.memory_bytes, total.memory_bytes * seats // max(1, total.seats))
    return Room(seats, memory or share, sum(group.number * group.gpus for group in groups))


def measure_record(record: JobRecord, total: Room) -> Room:
    """What a stored job needs. One that today's checks refuse needs a seat: it fails when it starts."""
    job = record.job
    try:
        return measure_job(
            job.training_input or TrainingInput(), job.training_options or TrainingOptions(), total
        )
    except ValueError:
        return Room(1)


def check_fits(given: TrainingInput, options: TrainingOptions, total: Room) -> None:
    """Raises FailedPrecondition for a job that can never start, and says what would fit."""
    needed = measure_job(given, options, total)
    if needed.seats > total.seats:
        tier = scale_tier(given)
        field = "worker_count" if tier == CUSTOM else "scale_tier"
        raise field_error(
            FailedPrecondition,
            f"training_input.{field}",
            f"The job has {needed.seats} replicas, and this server has seats for {total.seats} (setting "
            f"training_seats). Up to {total.seats - 1} beside the master would fit: scaleTier {CUSTOM} with "
            "workerCount, parameterServerCount and evaluatorCount says how many.",
        )
    if needed.gpus > total.gpus:
        has = f"has {total.gpus} (setting gpus)" if total.gpus else "has none (setting gpus)"
        per_group = [group for group in list_replica_groups(given) if group.gpus]
        raise field_error(
            FailedPrecondition,
            f"training_input.{per_group[0].field}_config.accelerator_config",
            f"The job needs {needed.gpus} GPUs, count times replicas, and this server {has}. Ask for "
            "fewer, or leave acceleratorConfig out to train without.",
        )
    if needed.memory_bytes > total.memory_bytes:
        raise field_error(
            FailedPrecondition,
            "training_options.memory_bytes",
            f"The job may take {needed.memory_bytes} bytes of memory, and all jobs together may take "
            f"{total.memory_bytes} (setting training_memory_bytes).",
        )


def sort_waiting(waiting: Iterable[JobRecord]) -> list[JobRecord]:
    """In the order in which they start: what was interrupted, then by priority, then by age."""
    return sorted(waiting, key=lambda record: (not record.attempt, -record.priority, record.number))


def choose_due(
    waiting: Sequence[JobRecord], running: Iterable[JobRecord], total: Room
) -> Sequence[JobRecord]:
    """The jobs that start now. What an earlier one waits for is kept for it: later ones do not delay it."""
    free = _measure_free(running, total)
    due = []
    for record in sort_waiting(waiting):
        needed = measure_record(record, total)
        if free.contains(needed):
            due.append(record)
        free -= needed
    return due


def explain_wait(
    record: JobRecord, waiting: Sequence[JobRecord], running: Iterable[JobRecord], total: Room
) -> str:
    """Why a job has not started yet."""
    free, needed = _measure_free(running, total), measure_record(record, total)
    shortages = [
        f"{wanted} {noun}, of which {max(0, there)} of {of} are free"
        for noun, wanted, there, of in (
            ("seats", needed.seats, free.seats, total.seats),
            ("bytes of memory", needed.memory_bytes, free.memory_bytes, total.memory_bytes),
            ("GPUs", needed.gpus, free.gpus, total.gpus),
        )
        if wanted > there
    ]
    if shortages:
        return f"The job waits for {' and '.join(shortages)}."
    ahead = [one.job.job_id for one in sort_waiting(waiting)]
    before = ahead[: ahead.index(record.job.job_id)] if record.job.job_id in ahead else []
    return f"The job waits behind {before[-1]}." if before else "The job is about to start."


def _measure_free(running: Iterable[JobRecord], total: Room) -> Room:
    free = total
    for record in running:
        free -= measure_record(record, total)
    return free
