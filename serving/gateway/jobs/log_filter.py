"""Filters of log entries, in the language of Cloud Logging as far as logs of jobs need it.

(resource.type="ml_job" OR resource.type="cloudml_job") AND resource.labels.job_id="J"
AND ((timestamp="…" AND insertId>"…") OR timestamp>"…") AND severity>=ERROR
"""

from __future__ import annotations

import datetime
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from serving.errors import InvalidArgument
from serving.gateway.api.query.filters import (
    Comparison,
    Conjunction,
    Disjunction,
    FilterExpression,
    compile_expression,
    parse_expression,
)
from serving.gateway.jobs.log_lines import SEVERITIES, JobLogLine

_JOB = "resource.labels.job_id"
# In characters, as Cloud Logging has it.
_LONGEST = 20_000
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)(?:[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|z|[+-]\d\d:\d\d)?)?")
_TEXTS: Mapping[str, Callable[[str, str], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    ":": lambda text, part: part in text.lower(),
}


LineMatcher = Callable[[JobLogLine], bool]


@dataclass(frozen=True, slots=True)
class LogFilter:
    """A filter: the job whose log it is about, and conditions on its lines."""

    job: str
    part: FilterExpression

    @classmethod
    def from_text(cls, text: str) -> LogFilter:
        """Raises InvalidArgument for a filter that cannot be parsed, or that is not of one job."""
        if len(text) > _LONGEST:
            raise _invalid_filter(f"It has {len(text)} characters, and may have {_LONGEST}.")
        part = parse_expression(text)
        jobs = {one.value for one in _iter_conjuncts(part) if (one.field, one.operator) == (_JOB, "=")}
        if len(jobs) != 1:
            raise _invalid_filter(f'Say whose log is meant, of one job: {_JOB}="JOB".')
        compile_expression(
            part, lambda asked: _compile_comparison(asked, {})
        )  # raises for what cannot be compared
        return cls(jobs.pop(), part)

    @property
    def earliest_time(self) -> int:
        """No line before it matches: microseconds since the epoch, 0 where nothing is said."""
        return _find_earliest(self.part) // 1000

    def build_matcher(self, fixed: Mapping[str, str]) -> LineMatcher:
        """Build the test of lines of entries that all have the `fixed` fields."""
        return compile_expression(self.part, lambda asked: _compile_comparison(asked, fixed))


def _iter_conjuncts(part: FilterExpression) -> Iterator[Comparison]:
    """Comparisons that hold for everything that the part matches."""
    match part:
        case Comparison():
            yield part
        case Conjunction(parts=parts):
            for one in parts:
                yield from _iter_conjuncts(one)


def _find_earliest(part: FilterExpression) -> int:
    """In nanoseconds since the epoch."""
    match part:
        case Comparison(field="timestamp", operator="=" | ">" | ">=", value=value):
            return max(0, _parse_nanoseconds(value))
        case Conjunction(parts=parts):
            return max(map(_find_earliest, parts), default=0)
        case Disjunction(parts=parts):
            return min(map(_find_earliest, parts), default=0)
    return 0


def _compile_comparison(asked: Comparison, fixed: Mapping[str, str]) -> LineMatcher:
    test = _TEXTS[asked.operator]
    value = asked.value.lower() if asked.operator == ":" else asked.value
    match asked.field:
        case "timestamp" | "receiveTimestamp":
            compare: Callable[[Any, Any], bool] = test
            wanted = _parse_nanoseconds(asked.value)
            if asked.operator == ":":
                raise _invalid_filter("Times are compared with =, !=, <, <=, > and >=.")
            return lambda line: compare(line.time * 1000, wanted)
        case "severity":
            severity = asked.value.upper()
            if severity not in SEVERITIES or asked.operator == ":":
                raise _invalid_filter(f"severity is compared with one of {', '.join(SEVERITIES)}.")
            rank: Callable[[Any, Any], bool] = test
            least = SEVERITIES.index(severity)
            return lambda line: rank(SEVERITIES.index(line.severity), least)
        case "insertId":
            return lambda line: test(line.insert_id, value)
        case "resource.labels.task_name" | "labels.task_name":
            return lambda line: test(line.task, value)
        case "textPayload":
            return lambda line: test(line.text, value)
        case other:
            holds = test(fixed.get(other, ""), value)
            return lambda _: holds


def _parse_nanoseconds(text: str) -> int:
    """Parse a time in a filter to nanoseconds since the epoch. Raises InvalidArgument."""
    found = _TIME.fullmatch(text)
    day, clock, fraction, zone = ("", "", "", "") if found is None else found.groups()
    zone = "+00:00" if zone in (None, "Z", "z") else zone
    try:
        moment = datetime.datetime.fromisoformat(f"{day}T{clock or '00:00:00'}{zone}")
        # Raises for what is not between the years 1 and 9999 in UTC.
        moment = moment.astimezone(datetime.UTC)
        return int(moment.timestamp()) * 1_000_000_000 + int((fraction or "0").ljust(9, "0"))
    except (ValueError, OverflowError):
        raise _invalid_filter(f"{text[:100]!r} is no time like 2026-01-31T12:00:00Z.") from None


def _invalid_filter(description: str) -> InvalidArgument:
    return InvalidArgument(f"Field: filter Error: {description}", field="filter")
