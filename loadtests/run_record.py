"""The files of a run in its folder, written while it lasts and read by the report.

- `run.json`: what was planned, against what, and whether it came to its end;
- `requests.csv`: each request, in the order of the answers;
- `nodes.csv`: the server's nodes, about once a second; no line when it does not report them.

All times are seconds since the start of the run.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from loadtests.node_counts import NodeCounts
from loadtests.shapes import LoadPlan, LoadStage

T = TypeVar("T")

_RUN, _REQUESTS, _NODES = "run.json", "requests.csv", "nodes.csv"


@dataclass(frozen=True)
class RequestRecord:
    """One request. `failure` says what was wrong with the answer; "" when it was right."""

    due: float
    """When it should have been sent."""
    free: float
    """When a user was free to send it."""
    sent: float
    done: float
    """When its answer was complete."""
    failure: str = ""

    @property
    def latency(self) -> float:
        """Seconds from the moment it should have been sent.

        If a user stood ready at that moment, what passed until the sending is the lateness of this machine's
        timer, about a millisecond and none of the server's, and is not counted.
        """
        return self.done - (self.due if self.free > self.due else self.sent)

    @property
    def lateness(self) -> float:
        """Seconds by which the loading machine sent later than it could have."""
        return self.sent - max(self.due, self.free)


@dataclass(frozen=True)
class NodeSample:
    at: float
    ready: int
    starting: int
    draining: int

    @property
    def nodes(self) -> int:
        """Nodes in any state."""
        return self.ready + self.starting + self.draining


@dataclass(frozen=True)
class RunSettings:
    """The settings of a run, and when it ended."""

    host: str
    target: str
    """Full name of the model or version."""
    rows: int
    """Instances per request."""
    users: int
    """Most requests in flight."""
    plan: LoadPlan
    wake_within: float
    p99_within: float
    ended: float | None = None
    """When the last stage and the last answer were over; None when the run was cut short."""


@dataclass(frozen=True)
class RunRecord:
    run: RunSettings
    requests: list[RequestRecord]
    """In the order in which they were due."""
    samples: list[NodeSample]


class RunWriter:
    """Writes a run into a folder; replaces an earlier run."""

    def __init__(self, folder: Path, run: RunSettings) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._run = run
        self._write_run(run)
        self._requests = (folder / _REQUESTS).open("w", newline="")
        self._nodes = (folder / _NODES).open("w", newline="")
        self._request_rows = csv.writer(self._requests)
        self._node_rows = csv.writer(self._nodes)
        self._request_rows.writerow(("due", "free", "sent", "done", "failure"))
        self._node_rows.writerow(("at", "ready", "starting", "draining"))

    def add_request(self, one: RequestRecord) -> None:
        times = (f"{time:.6f}" for time in (one.due, one.free, one.sent, one.done))
        self._request_rows.writerow((*times, one.failure))

    def add_nodes(self, at: float, counts: NodeCounts) -> None:
        self._node_rows.writerow((f"{at:.3f}", counts.ready, counts.starting, counts.draining))

    def flush(self) -> None:
        self._nodes.flush()
        self._requests.flush()

    def close(self, ended: float | None) -> None:
        """End the record; `ended` is None for a run that was cut short."""
        self._requests.close()
        self._nodes.close()
        self._write_run(replace(self._run, ended=ended))

    def _write_run(self, run: RunSettings) -> None:
        (self._folder / _RUN).write_text(json.dumps(asdict(run), indent=1) + "\n")


def read_run(folder: Path) -> RunRecord:
    """The run in a folder; OSError when there is none, ValueError when the files are something else."""
    requests = _read_table(folder / _REQUESTS, _parse_request)
    requests.sort(key=lambda one: one.due)
    run = _parse_run(json.loads((folder / _RUN).read_text()))
    return RunRecord(run, requests, _read_table(folder / _NODES, _parse_sample))


def _parse_run(document: dict[str, Any]) -> RunSettings:
    plan = document.pop("plan")
    stages = tuple(LoadStage(**stage) for stage in plan.pop("stages"))
    return RunSettings(plan=LoadPlan(stages=stages, **plan), **document)


def _read_table(file: Path, parse: Callable[[list[str]], T]) -> list[T]:
    """The lines below the header; a run that was killed may have left an incomplete last line."""
    with file.open(newline="") as lines:
        head, *rows = list(csv.reader(lines)) or [[]]
    return [parse(row) for row in rows if len(row) == len(head)]


def _parse_request(row: list[str]) -> RequestRecord:
    due, free, sent, done = map(float, row[:4])
    return RequestRecord(due, free, sent, done, row[4])


def _parse_sample(row: list[str]) -> NodeSample:
    return NodeSample(float(row[0]), *map(int, row[1:]))
