"""A load run: due requests, the clock and the record, independent of locust."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from loadtests import node_counts, report
from loadtests.payloads import InstanceTemplate, iter_bodies
from loadtests.run_record import RequestRecord, RunSettings, RunWriter, read_run
from loadtests.summary import RunSummary

# What has no answer this long after the last stage counts as never answered.
ANSWER_TIMEOUT_SECONDS = 60.0
_NODE_TIMEOUT_SECONDS = 2.0


class LoadRun:
    """The requests of one run, handed out in the order in which they are due.

    `lead` is the time in seconds until the run starts; `clock` returns seconds.
    """

    def __init__(
        self,
        run: RunSettings,
        rows: list[InstanceTemplate],
        folder: Path,
        *,
        lead: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._run = run
        self._folder = folder
        self._clock = clock
        self._start = clock() + lead
        self._due_times = run.plan.iter_due_times()
        self._bodies = iter_bodies(rows, run.rows)
        self._unanswered = run.plan.count_due_before(run.plan.seconds)
        self._end = run.plan.seconds
        self._writer = RunWriter(folder, run)

    def elapsed_seconds(self) -> float:
        """Seconds since the start of the run; negative before."""
        return self._clock() - self._start

    def take_request(self) -> tuple[float, str] | None:
        """When the next request is due, and its body; None when all are taken."""
        due = next(self._due_times, None)
        return None if due is None else (due, next(self._bodies))

    def record_request(self, request: RequestRecord) -> None:
        self._unanswered -= 1
        self._end = max(self._end, request.done)
        self._writer.add_request(request)

    def sample_nodes(self) -> None:
        """Record the node counts of the server, if it reports them."""
        counts = node_counts.fetch_node_counts(self._run.host, self._run.target, _NODE_TIMEOUT_SECONDS)
        if counts is not None:
            self._writer.add_nodes(self.elapsed_seconds(), counts)
        self._writer.flush()

    @property
    def is_over(self) -> bool:
        """Whether the last stage has ended and no answer is outstanding."""
        late = self.elapsed_seconds() - self._run.plan.seconds
        return late >= 0 and (not self._unanswered or late > ANSWER_TIMEOUT_SECONDS)

    def finish(self) -> tuple[RunSummary, str]:
        """End the run, complete or not, and write the report; returns it as numbers and as text."""
        over = self.is_over
        if over:
            self.sample_nodes()
        self._writer.close(self._end if over else None)
        record = read_run(self._folder)
        summary = report.write_report(self._folder, record)
        return summary, report.format_report(record, summary)
