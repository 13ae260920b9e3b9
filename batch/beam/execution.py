"""Run a planned job on Beam: what the embedded and the remote runners have in common."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import apache_beam as beam

from batch import failures
from batch.beam import pipeline
from batch.beam.pipeline import PipelinePlan
from batch.failures import ErrorLimit, JobFailed
from batch.messages import FailureStatus, JobCounts

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunContext:
    """What a run needs besides its plan.

    `on_counts` gets its progress; `on_stuck` is called when workers do not stop that should: it ends the
    process.
    """

    limit: ErrorLimit
    bytes_total: int
    on_counts: Callable[[JobCounts], None]
    on_stuck: Callable[[FailureStatus], None]


@dataclass(frozen=True, slots=True)
class RunTiming:
    """How long a run took, in seconds: see `JobOutcome`."""

    seconds: float
    worker_seconds: float


def start_pipeline(runner: Any, options: Any, plan: PipelinePlan) -> Any:
    """Submit the pipeline to the runner; returns Beam's result object."""
    steps = beam.Pipeline(runner=runner, options=options)
    pipeline.build_pipeline(steps, plan)
    return steps.run()


def to_job_failure(error: Exception) -> JobFailed:
    """The JobFailed that an exception of Beam carries, or one of INTERNAL."""
    if isinstance(error, JobFailed):
        return error
    failed = failures.extract_failure(str(error))
    if failed is None:
        logger.error("the pipeline failed", exc_info=error)
        last = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        failed = FailureStatus("INTERNAL", f"The pipeline failed: {last[0]}")
    return JobFailed(failed)
