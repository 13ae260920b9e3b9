"""Runs a planned job on this machine, and watches over its workers meanwhile."""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

from batch import execution, runners
from batch.execution import Run, Took
from batch.failures import JobFailed
from batch.messages import Counts, Failed
from batch.meter import Meters
from batch.pipeline import Plan

logger = logging.getLogger(__name__)

# Seconds between two looks at the workers; how long a worker may be silent; how long one may take to stop.
_LOOK_EVERY, _SILENCE, _STOP_WITHIN = 0.5, 60.0, 10.0
# The exit code of an attempt whose worker is gone: a new one may do better.
LOST = 70


def run(plan: Plan, workers: int, wanted: Run) -> Took:
    """Run on this machine. Raises JobFailed."""
    if workers > 1:
        # All threads here are Beam's; with one worker those of a model's code are among them.
        threading.excepthook = _worker_died
    start = time.monotonic()
    meters = Meters(Path(plan.meters))
    # A single one is this process, whose silence the server notices.
    watch = _Watch(meters, wanted, workers if workers > 1 else 0)
    runner, options = runners.embedded(workers, plan.meters)
    watch.start()
    try:
        _finish(runner, options, plan)
    except JobFailed:
        if watch.reason:
            raise watch.failed() from None
        raise
    finally:
        watch.finish()
    return Took(meters.totals().seconds, (time.monotonic() - start) * workers)


def _finish(runner: Any, options: Any, plan: Plan) -> None:
    try:
        execution.start(runner, options, plan).wait_until_finish()
    except Exception as error:
        raise execution.failure(error) from error


def _worker_died(arguments: threading.ExceptHookArgs) -> None:
    """Beam waits for ever when a worker is gone; its thread for the process ends with this error."""
    logger.error("a worker is gone: %s", arguments.exc_value)
    os._exit(LOST)


class _Watch(threading.Thread):
    """Looks at the workers of this machine, stops them for too many errors, and gives up silent ones.

    `processes` workers are to show up soon.
    """

    def __init__(self, meters: Meters, run: Run, processes: int) -> None:
        super().__init__(name="watch", daemon=True)
        self._meters = meters
        self._run = run
        self._processes = processes
        self._finished = threading.Event()
        self._stop_by: float | None = None
        self.reason = ""

    def run(self) -> None:
        """Look again and again."""
        while not self._finished.wait(_LOOK_EVERY):
            self._look()

    def finish(self) -> None:
        """Look no more."""
        self._finished.set()
        self.join()

    def failed(self) -> JobFailed:
        """Why the workers were stopped."""
        counts = self._counts()
        message = " ".join([self.reason, "The first of them:", "; ".join(self._meters.examples())])
        return JobFailed(Failed("FAILED_PRECONDITION", message, counts.predictions, counts.errors))

    def _look(self) -> None:
        counts = self._counts()
        self._run.counted(counts)
        if self._stop_by is None:
            self.reason = self._run.limit.exceeded(counts.predictions, counts.errors, final=False)
            if self.reason:
                self._meters.stop()
                self._stop_by = time.monotonic() + _STOP_WITHIN
        elif time.monotonic() > self._stop_by:
            self._run.abandon(self.failed().failed)
        if (silence := self._meters.silence(self._processes)) > _SILENCE:
            logger.error("a worker has been silent for %.0f s", silence)
            os._exit(LOST)

    def _counts(self) -> Counts:
        return self._meters.counts(self._run.bytes_total)
