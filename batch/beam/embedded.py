"""Runs a planned job on this machine, and watches its workers."""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path

from batch.beam import pipeline, runners
from batch.beam.extra_workers import ExtraWorkers
from batch.beam.pipeline import PipelinePlan, RunContext, RunTiming
from batch.beam.progress import ProgressReader
from batch.failures import JobFailed
from batch.messages import EXIT_WORKERS_LOST, FailureStatus, JobCounts
from batch.process_group import end_group_on_sigterm

logger = logging.getLogger(__name__)

# Seconds between two checks of the workers, of silence of a worker, and for a worker to stop.
_LOOK_EVERY, _LONGEST_SILENCE, _STOP_WITHIN = 0.5, 60.0, 10.0


def run_embedded(plan: PipelinePlan, workers: int, most: int, context: RunContext) -> RunTiming:
    """Begin with so many workers; others join where processors are idle, up to `most`.

    Raises JobFailed, and WorkersLost.
    """
    if workers > 1:
        # All threads here are Beam's; with one worker those of a model's code are among them.
        threading.excepthook = _exit_on_dead_worker
        end_group_on_sigterm()
    start = time.monotonic()
    progress = ProgressReader(Path(plan.progress_folder))
    # A single worker is this process, which the server watches.
    extra = ExtraWorkers(plan, progress, workers=workers, most=most)
    watch = _WorkerWatch(progress, context, extra, workers if workers > 1 else 0)
    runner, options = runners.create_embedded_runner(workers, plan.progress_folder)
    watch.start()
    try:
        pipeline.run_pipeline(runner, options, plan)
        own_seconds = (time.monotonic() - start) * workers
        extra.wait()
    except JobFailed:
        if watch.reason:
            raise watch.build_failure() from None
        raise
    finally:
        watch.finish()
        extra.kill()
    return RunTiming(progress.read_totals().seconds, own_seconds + extra.seconds)


def _exit_on_dead_worker(arguments: threading.ExceptHookArgs) -> None:
    """Beam waits for ever when a worker has died; its thread for that process ends with this error."""
    logger.error("a worker is gone: %s", arguments.exc_value)
    os._exit(EXIT_WORKERS_LOST)


class _WorkerWatch(threading.Thread):
    """Watches the workers: stops them for too many errors, and ends this process if one is silent.

    `processes` workers must report within `_LONGEST_SILENCE`. It looks after those that join, too.
    """

    def __init__(
        self, progress: ProgressReader, context: RunContext, extra: ExtraWorkers, processes: int
    ) -> None:
        super().__init__(name="watch", daemon=True)
        self._progress = progress
        self._context = context
        self._extra = extra
        self._processes = processes
        self._earlier = context.read_sealed_shards()
        self._finished = threading.Event()
        self._stop_by: float | None = None
        self.reason = ""

    def run(self) -> None:
        while not self._finished.wait(_LOOK_EVERY):
            self._check_workers()

    def finish(self) -> None:
        self._finished.set()
        self.join()

    def build_failure(self) -> JobFailed:
        counts = self._read_counts()
        message = " ".join(
            [self.reason, "The first of them:", "; ".join(self._progress.read_rejected_samples())]
        )
        return JobFailed(FailureStatus("FAILED_PRECONDITION", message, counts.predictions, counts.errors))

    def _check_workers(self) -> None:
        self._extra.adjust()
        counts = self._read_counts()
        self._context.on_counts(counts)
        if self._stop_by is None:
            self.reason = self._context.limit.explain_excess(counts.predictions, counts.errors, final=False)
            if self.reason:
                self._progress.stop_workers()
                self._stop_by = time.monotonic() + _STOP_WITHIN
        elif time.monotonic() > self._stop_by:
            self._context.on_stuck(self.build_failure().failure)
        if (silence := self._progress.longest_silence(self._processes)) > _LONGEST_SILENCE:
            logger.error("a worker has been silent for %.0f s", silence)
            os._exit(EXIT_WORKERS_LOST)

    def _read_counts(self) -> JobCounts:
        return self._progress.read_counts(self._context.bytes_total).add_earlier(self._earlier)
