"""What of a job's log is on a page, also where several servers have parts of the log."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from serving.gateway.jobs.log_filter import LogFilter
from serving.gateway.jobs.log_lines import JobLogLine
from serving.gateway.state.records import JobRecord

# Of the texts of one page.
_MAX_PAGE_BYTES = 8 << 20
LOG_RESOURCE_TYPE = "ml_job"

# Of a line among those of all jobs: its time, its number among those of that time, and its job.
LinePosition = tuple[int, int, str]
JobLine = tuple[JobLogLine, JobRecord]


class LogQuery(msgspec.Struct, frozen=True):
    """The first `count` lines behind a position that a filter matches, or the last ones before it."""

    filter: str
    count: int
    descending: bool = False
    after: LinePosition | None = None


class LogPart(msgspec.Struct, frozen=True):
    """Lines in the order of their query; `is_last`: there are no more in this part of the log."""

    lines: Sequence[JobLogLine]
    is_last: bool


def build_entry_fields(record: JobRecord) -> dict[str, str]:
    """The fields that all entries of a job have."""
    project = record.name.split("/")[1]
    return {
        "logName": f"projects/{project}/logs/ml.googleapis.com%2Fjob",
        "resource.type": LOG_RESOURCE_TYPE,
        "resource.labels.job_id": record.job.job_id,
        "resource.labels.project_id": project,
    }


def position_of(line: JobLogLine, record: JobRecord) -> LinePosition:
    return line.time, line.number, record.name


def find_first_time(query: LogQuery) -> int:
    """No line before it is asked for: microseconds since the epoch. Raises InvalidArgument."""
    earliest = LogFilter.from_text(query.filter).earliest_time
    return earliest if query.after is None or query.descending else max(earliest, query.after[0])


def select_lines(lines: Iterable[JobLogLine], record: JobRecord, query: LogQuery) -> LogPart:
    """What a query asks for of the ordered lines of one job; reads no more of them than it needs.

    Raises InvalidArgument for its filter.
    """
    matches = LogFilter.from_text(query.filter).build_matcher(build_entry_fields(record))
    after = query.after
    if query.descending:
        asked = (line for line in lines if after is None or position_of(line, record) < after)
        chosen = (line for line in asked if matches(line))
        found = heapq.nlargest(query.count + 1, chosen, key=lambda line: (line.time, line.number))
    else:
        asked = (line for line in lines if after is None or position_of(line, record) > after)
        found = list(itertools.islice(filter(matches, asked), query.count + 1))
    count = _count_fitting(found, query.count)
    return LogPart(found[:count], count == len(found))


def merge_parts(
    parts: Sequence[tuple[JobRecord, LogPart]], query: LogQuery
) -> tuple[Sequence[JobLine], bool]:
    """The page that the parts of logs make together, and whether there is nothing behind it."""
    merged = list(heapq.merge(*map(_list_job_lines, parts), key=_position_of_pair, reverse=query.descending))
    # What stands behind the end of a part that goes on may not be the next.
    ends = [position_of(part.lines[-1], record) for record, part in parts if not part.is_last]
    if ends:
        nearest = max(ends) if query.descending else min(ends)
        merged = merged[: [_position_of_pair(one) for one in merged].index(nearest) + 1]
    count = _count_fitting([line for line, _ in merged], query.count)
    return merged[:count], count == len(merged) and not ends


def _list_job_lines(part: tuple[JobRecord, LogPart]) -> Iterator[JobLine]:
    record, found = part
    return ((line, record) for line in found.lines)


def _position_of_pair(pair: JobLine) -> LinePosition:
    return position_of(*pair)


def _count_fitting(lines: Sequence[JobLogLine], most: int) -> int:
    """How many lines a page has: one at least, if there are any."""
    sizes = itertools.accumulate(len(line.text) for line in lines[:most])
    return max(sum(size <= _MAX_PAGE_BYTES for size in sizes), min(1, len(lines)))
