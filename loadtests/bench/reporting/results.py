"""What was measured, as JSON lines: one per load, one per server process, one per failure.

A line with "kind": "process" has a server's start and memory, one with "kind": "error" a failure to measure
it; any other is a load. Unknown fields are ignored, so that files of other runners can be read as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

ERRORS = ("err_connect", "err_read", "err_write", "err_status", "err_timeout")


@dataclass(frozen=True)
class LoadFigures:
    """The figures of a load. Latencies in microseconds; `errors` by kind, only those that happened."""

    requests: int
    seconds: float
    rps: float
    p50_us: float
    p90_us: float
    p99_us: float
    max_us: float
    mean_us: float
    errors: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class LoadResult:
    """One load on one server. `wrong` says what was wrong with an answer, "" when all were right."""

    peer: str
    model: str
    workload: str
    conns: int
    rps: float
    p50_us: float
    p99_us: float
    round: int = 0
    requests: int = 0
    errors: int = 0
    wrong: str = ""
    cpu_us: float | None = None
    """CPU time of all processes of the server per request, in microseconds."""
    front_cpu_us: float | None = None
    """That of the process that clients are connected to."""


@dataclass(frozen=True)
class ServerResult:
    """A server: seconds from its start to its first answer (None if it ran already), memory."""

    peer: str
    model: str
    start_s: float | None
    rss_mib: float
    pss_mib: float
    processes: int
    round: int = 0


@dataclass(frozen=True)
class MeasurementFailure:
    """A server that could not be measured, and why."""

    peer: str
    model: str
    error: str
    round: int = 0


@dataclass(frozen=True)
class BenchResults:
    loads: Sequence[LoadResult]
    processes: Sequence[ServerResult]
    failures: Sequence[MeasurementFailure]

    def median_of(self, peer: str, workload: str, conns: int, what: str) -> float | None:
        """The median over the rounds of a field of LoadResult; None when there is no such load."""
        found = [
            getattr(one, what)
            for one in self.loads
            if (one.peer, one.workload, one.conns) == (peer, workload, conns)
            and getattr(one, what) is not None
        ]
        return median(found) if found else None

    def list_peers(self) -> list[str]:
        """In the order of their first loads."""
        return list(dict.fromkeys(one.peer for one in self.loads))

    def list_workloads(self) -> list[str]:
        """In the order of their names."""
        return sorted({one.workload for one in self.loads})


def format_row(
    row: LoadResult | ServerResult | MeasurementFailure, figures: LoadFigures | None = None
) -> str:
    """A row as a line of JSON, a load with all its figures."""
    found = {name: value for name, value in asdict(row).items() if value not in (None, "")}
    match row:
        case ServerResult():
            found |= {"kind": "process", "start_s": row.start_s}
        case MeasurementFailure():
            found["kind"] = "error"
        case LoadResult():
            del found["errors"]
    if figures is not None:
        values = asdict(figures)
        errors = values.pop("errors")
        found |= values | {name: errors.get(name, 0) for name in ERRORS}
    return json.dumps(found)


def read_results(files: Iterable[Path]) -> BenchResults:
    """The rows of several files. Raises OSError, or ValueError naming an invalid line."""
    loads: list[LoadResult] = []
    processes: list[ServerResult] = []
    failures: list[MeasurementFailure] = []
    for file in files:
        for number, text in enumerate(file.read_text().splitlines(), 1):
            if not text.startswith("{"):  # what other programs printed
                continue
            try:
                found = json.loads(text)
                match found.get("kind"):
                    case "process":
                        processes.append(_from_fields(ServerResult, found))
                    case "error":
                        failures.append(_from_fields(MeasurementFailure, found))
                    case None:
                        errors = sum(found.get(name, 0) for name in ERRORS)
                        loads.append(_from_fields(LoadResult, {**found, "errors": errors}))
            except (ValueError, TypeError) as error:
                raise ValueError(f"{file}, line {number}: {error}") from error
    return BenchResults(loads, processes, failures)


T = TypeVar("T")


def _from_fields(kind: type[T], found: Mapping[str, Any]) -> T:
    known = {one.name for one in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in found.items() if name in known})
