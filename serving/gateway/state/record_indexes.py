"""Persistent indexes of jobs and operations, for lists, the job queue, retention and metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from serving.gateway.state.records import JobRecord, OperationRecord
from serving.gateway.state.sorted_index import SortedIndex, SortedSequence


@dataclass(frozen=True, slots=True)
class JobIndex:
    """Names of jobs, each after its sort key.

    `by_project` is sorted by negative number (the newest first), `unfinished` by number, `ended` by end time.
    `states` counts jobs by project and state. `records` counts the records of ended jobs by project and
    outcome, jobs that were deleted since included. `last_number` is the highest number ever used.
    """

    by_project: SortedIndex[str, tuple[int, str]] = field(default_factory=lambda: SortedIndex({}))
    unfinished: SortedSequence[tuple[int, str]] = field(default_factory=SortedSequence)
    ended: SortedSequence[tuple[str, str]] = field(default_factory=SortedSequence)
    states: Mapping[tuple[str, str], int] = field(default_factory=Counter)
    records: Mapping[tuple[str, str], int] = field(default_factory=Counter)
    last_number: int = 0

    @classmethod
    def from_jobs(cls, jobs: Iterable[JobRecord]) -> JobIndex:
        projects: dict[str, list[tuple[int, str]]] = {}
        unfinished: list[tuple[int, str]] = []
        ended: list[tuple[str, str]] = []
        states: Counter[tuple[str, str]] = Counter()
        records: Counter[tuple[str, str]] = Counter()
        for job in jobs:
            projects.setdefault(job.project, []).append((-job.number, job.name))
            states[job.project, str(job.job.state)] += 1
            if job.has_ended:
                ended.append((job.job.end_time, job.name))
                for key, count in _count_records(job):
                    records[key] += count
            else:
                unfinished.append((job.number, job.name))
        last_number = -min((key[0] for found in projects.values() for key in found), default=0)
        by_project = SortedIndex(
            {project: SortedSequence.from_values(found) for project, found in projects.items()}
        )
        return cls(
            by_project,
            SortedSequence.from_values(unfinished),
            SortedSequence.from_values(ended),
            states,
            records,
            last_number,
        )

    def with_change(self, before: JobRecord | None, after: JobRecord | None) -> JobIndex:
        """With a job that is new (no `before`), changed, or deleted (no `after`)."""
        index = self
        if before is not None:
            index = index._without_job(before)
        if after is not None:
            index = index._with_job(after)
            if after.has_ended and (before is None or not before.has_ended):
                index = replace(index, records=Counter(index.records) + Counter(dict(_count_records(after))))
        if before is None and after is not None:
            key = (-after.number, after.name)
            by_project = index.by_project.with_name(after.project, key)
            index = replace(index, by_project=by_project, last_number=max(index.last_number, after.number))
        elif before is not None and after is None:
            key = (-before.number, before.name)
            index = replace(index, by_project=index.by_project.without_name(before.project, key))
        return index

    def _with_job(self, job: JobRecord) -> JobIndex:
        states = Counter(self.states) + Counter([(job.project, str(job.job.state))])
        if job.has_ended:
            return replace(self, states=states, ended=self.ended.with_value((job.job.end_time, job.name)))
        return replace(self, states=states, unfinished=self.unfinished.with_value((job.number, job.name)))

    def _without_job(self, job: JobRecord) -> JobIndex:
        states = Counter(self.states) - Counter([(job.project, str(job.job.state))])
        if job.has_ended:
            return replace(self, states=states, ended=self.ended.without_value((job.job.end_time, job.name)))
        return replace(self, states=states, unfinished=self.unfinished.without_value((job.number, job.name)))


@dataclass(frozen=True, slots=True)
class OperationIndex:
    """Names of operations: by project, sorted by `operation_sort_key`; done ones after their end time."""

    by_project: SortedIndex[str, tuple[int, str]] = field(default_factory=lambda: SortedIndex({}))
    done: SortedSequence[tuple[str, str]] = field(default_factory=SortedSequence)

    @classmethod
    def from_operations(cls, operations: Iterable[OperationRecord]) -> OperationIndex:
        projects: dict[str, list[tuple[int, str]]] = {}
        done: list[tuple[str, str]] = []
        for record in operations:
            projects.setdefault(record.project, []).append(operation_sort_key(record.name))
            if record.operation.done:
                done.append(_end_sort_key(record))
        by_project = SortedIndex(
            {project: SortedSequence.from_values(found) for project, found in projects.items()}
        )
        return cls(by_project, SortedSequence.from_values(done))

    def with_change(self, before: OperationRecord | None, after: OperationRecord | None) -> OperationIndex:
        """With an operation that is new (no `before`), changed, or deleted (no `after`)."""
        by_project, done = self.by_project, self.done
        if before is not None and before.operation.done:
            done = done.without_value(_end_sort_key(before))
        if after is not None and after.operation.done:
            done = done.with_value(_end_sort_key(after))
        if before is None and after is not None:
            by_project = by_project.with_name(after.project, operation_sort_key(after.name))
        elif before is not None and after is None:
            by_project = by_project.without_name(before.project, operation_sort_key(before.name))
        return OperationIndex(by_project, done)


def operation_sort_key(name: str) -> tuple[int, str]:
    """The sort key of an operation: the newest first.

    A name ends in the milliseconds of its creation; times in the metadata have only seconds.
    """
    return -int(name.rpartition("-")[2]), name


def _end_sort_key(record: OperationRecord) -> tuple[str, str]:
    return record.operation.metadata.end_time, record.name


def _count_records(job: JobRecord) -> Iterator[tuple[tuple[str, str], int]]:
    output = job.job.prediction_output
    if output is not None and job.has_ended:
        yield (job.project, "predicted"), int(output.prediction_count or 0)
        yield (job.project, "refused"), int(output.error_count or 0)
