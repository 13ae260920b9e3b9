"""A run while it lasts: which request is due next, the clock, and the record. Knows nothing of locust."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from loadtests import nodes, report
from loadtests.record import Request, Run, Writer, read
from loadtests.rows import Row, bodies
from loadtests.summary import Summary

# What has no answer this long after the last stage counts as never answered.
PATIENCE_SECONDS = 60.0
_ASK_SECONDS = 2.0


class Load:
    """The requests of one run, handed out in the order in which they are due.

    `lead` is the time in seconds until the run starts; `clock` tells seconds.
    """

    def __init__(
        self,
        run: Run,
        rows: list[Row],
        folder: Path,
        *,
        lead: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._run = run
        self._folder = folder
        self._clock = clock
        self._start = clock() + lead
        self._due = run.plan.due()
        self._bodies = bodies(rows, run.rows)
        self._open = run.plan.due_before(run.plan.seconds)
        self._end = run.plan.seconds
        self._writer = Writer(folder, run)

    def now(self) -> float:
        """Seconds since the start of the run; negative before."""
        return self._clock() - self._start

    def take(self) -> tuple[float, str] | None:
        """When the next request is due, and its body; None when all are taken."""
        due = next(self._due, None)
        return None if due is None else (due, next(self._bodies))

    def note(self, request: Request) -> None:
        """Record a request that was answered, or that failed."""
        self._open -= 1
        self._end = max(self._end, request.done)
        self._writer.request(request)

    def count_nodes(self) -> None:
        """Record how many nodes the server has, if it tells."""
        counts = nodes.ask(self._run.host, self._run.target, _ASK_SECONDS)
        if counts is not None:
            self._writer.nodes(self.now(), counts)
        self._writer.flush()

    @property
    def over(self) -> bool:
        """Whether the last stage has ended and no answer is still to come."""
        late = self.now() - self._run.plan.seconds
        return late >= 0 and (not self._open or late > PATIENCE_SECONDS)

    def finish(self) -> tuple[Summary, str]:
        """End the run, be it over or not, and write the report; returns it as numbers and as text."""
        over = self.over
        if over:
            self.count_nodes()
        self._writer.close(self._end if over else None)
        record = read(self._folder)
        summary = report.write(self._folder, record)
        return summary, report.text(record, summary)
