"""Runs a planned job on a remote runner, which takes the pipeline to other machines."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import psutil
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.options.pipeline_options import PortableOptions
from apache_beam.runners.runner import PipelineState

from batch import failures
from batch.beam import pipeline
from batch.beam.pipeline import PipelinePlan, RunContext, RunTiming
from batch.beam.runners import RemoteRunner
from batch.beam.start_failure import explain_start_failure
from batch.beam.trouble_watch import TroubleWatch
from batch.engines.engine import Engine, EngineState
from batch.engines.root_cause import explain_busy_job_server, explain_version_conflict, find_root_cause
from batch.failures import JobFailed, WorkersLost
from batch.messages import FailureStatus, JobCounts
from batch.worker_signs import WorkerFailure, find_failure, format_signs_folder, read_signs
from serving.errors import FailedPrecondition, InvalidArgument, ServingError, Unavailable

logger = logging.getLogger(__name__)

# Seconds between two polls of the pipeline, at first and later.
_LOOK_FIRST, _LOOK_EVERY = 0.5, 5.0
# The exit code after SIGTERM.
_EXIT_TERMINATED = 128 + signal.SIGTERM


def run_remote(
    plan: PipelinePlan, remote: RemoteRunner, packages: Callable[[], Sequence[str]], context: RunContext
) -> RunTiming:
    """Run on other machines; how long each worker ran is unknown. Raises ServingError or JobFailed.

    `packages` builds the archives for workers that have nothing but Beam. SIGTERM to this process cancels
    the pipeline too, where the engine runs it.
    """
    start = time.monotonic()
    earlier = context.read_sealed_shards()
    signs = format_signs_folder(plan.folder)
    plan.files.delete_folder(signs)
    try:
        with _raise_on_sigterm(), _cancelled_on_error(remote.engine), _end_new_children():
            if remote.bare_workers:
                remote.add_packages(packages())
            result = _submit_pipeline(remote, plan)
            watch = TroubleWatch(
                remote.engine,
                partial(read_signs, plan.files, signs),
                context.on_trouble,
                own_start=time.time() - psutil.Process().create_time(),
            )
            try:
                find = partial(find_failure, plan.files, signs)
                _follow_pipeline(result, remote, context, watch, earlier=earlier, find_failure=find)
            except BaseException:
                _cancel_pipeline(result)
                raise
    except _TerminationRequested:
        os._exit(_EXIT_TERMINATED)
    seconds = time.monotonic() - start
    return RunTiming(seconds, seconds)


def cancel_attempts(engine: Engine) -> None:
    """End what earlier attempts have left running on an engine; a process that was killed could not."""
    try:
        engine.cancel()
    except Unavailable as error:
        logger.warning("the pipeline may still be running: %s", error.message)


class _TerminationRequested(BaseException):
    """SIGTERM was received."""


@contextmanager
def _raise_on_sigterm() -> Iterator[None]:
    def terminate(*_: object) -> None:
        # What follows must not be interrupted by a second one.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise _TerminationRequested

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _cancelled_on_error(engine: Engine) -> Iterator[None]:
    try:
        yield
    except BaseException:
        if engine.find_state() is not EngineState.ENDED:
            cancel_attempts(engine)
        raise


def _submit_pipeline(remote: RemoteRunner, plan: PipelinePlan) -> Any:
    try:
        return pipeline.start_pipeline(remote.runner, remote.options, plan)
    except ServingError:
        raise
    except (ValueError, SystemExit) as error:
        # Beam's own checks of the options, and of those that only the job server knows.
        text = (
            str(error)
            if isinstance(error, ValueError)
            else "Beam rejected an option value; see the job's log"
        )
        raise InvalidArgument(f"{remote.name} does not take the options: {_to_one_line(text)}") from error
    except Exception as error:
        raise FailedPrecondition(
            f"{remote.name} could not take the pipeline: {type(error).__name__}: {_to_one_line(str(error))}. "
            "docs/batch.md says what each runner needs."
        ) from error


def _follow_pipeline(
    result: Any,
    remote: RemoteRunner,
    context: RunContext,
    watch: TroubleWatch,
    *,
    earlier: JobCounts,
    find_failure: Callable[[], WorkerFailure | None],
) -> None:
    """Poll a pipeline until it ends, or a worker tells of an error. Raises JobFailed; Unavailable when the
    runner or a worker is lost.
    """
    name = remote.name
    wait = _PipelineWaiter(result)
    wait.start()
    pause = _LOOK_FIRST
    while wait.is_alive():
        _check_progress(result, context, earlier)
        _raise_failure(find_failure())
        watch.check()
        wait.join(pause)
        pause = min(pause * 1.5, _LOOK_EVERY)
    try:
        state = result.state
    except Exception as error:
        raise Unavailable(f"{name} does not answer any more: {_to_one_line(str(error))}") from error
    if not PipelineState.is_terminal(state):
        raise Unavailable(f"{name} said nothing more of the pipeline: {_to_one_line(str(wait.error))}")
    if state != PipelineState.DONE:
        _raise_failure(find_failure())
        raise _build_failure(remote, state, str(wait.error or ""), watch.find_worker_trouble())


def _raise_failure(found: WorkerFailure | None) -> None:
    if found is not None:
        logger.error("a worker has failed: %s", found.trace)
        raise JobFailed(found.failure)


class _PipelineWaiter(threading.Thread):
    """Waits for the end of a pipeline; Beam logs the runner's messages meanwhile."""

    def __init__(self, result: Any) -> None:
        super().__init__(name="wait", daemon=True)
        self._result = result
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self._result.wait_until_finish()
        except Exception as error:
            self.error = error


def _check_progress(result: Any, context: RunContext, earlier: JobCounts) -> None:
    counts = _query_counts(result, context.bytes_total).add_earlier(earlier)
    sealed = context.read_sealed_shards()
    # A runner need not tell any counts, and forgets them when it begins anew.
    if sealed.bytes > counts.bytes:
        counts = sealed
    context.on_counts(counts)
    if reason := context.limit.explain_excess(counts.predictions, counts.errors, final=False):
        raise JobFailed(FailureStatus("FAILED_PRECONDITION", reason, counts.predictions, counts.errors))


def _query_counts(result: Any, bytes_total: int) -> JobCounts:
    try:
        # A copy: a result caches the first metrics.
        metrics = copy.copy(result).metrics()
        found = metrics.query(MetricsFilter().with_namespace(pipeline.NAMESPACE))["counters"]
    except Exception as error:  # a runner need not report any while it works
        logger.debug("no metrics: %s", error)
        return JobCounts(bytes_total=bytes_total)
    # Runners report both numbers, or one of them.
    sums = {one.key.metric.name: max(one.attempted or 0, one.committed or 0) for one in found}
    return JobCounts(
        predictions=sums.get(pipeline.PREDICTIONS, 0),
        errors=sums.get(pipeline.ERRORS, 0),
        bytes=min(sums.get(pipeline.BYTES, 0), bytes_total),
        bytes_total=bytes_total,
    )


def _build_failure(remote: RemoteRunner, state: str, text: str, trouble: str) -> JobFailed | WorkersLost:
    failed = failures.extract_failure(text)
    if failed is not None:
        return JobFailed(failed)
    logger.error("%s ended the pipeline in the state %s: %s", remote.name, state, text)
    if trouble:
        return JobFailed(FailureStatus(FailedPrecondition.status, trouble))
    portable = remote.options.view_as(PortableOptions)
    known = explain_version_conflict(text) or explain_start_failure(
        portable.environment_type, portable.environment_config, text
    )
    if known and not remote.engine.is_worker_lost(text):
        return JobFailed(FailureStatus(FailedPrecondition.status, known))
    reason = explain_busy_job_server(text) or find_root_cause(text) or "see the job's log, and its own"
    message = f"{remote.name} ended the pipeline in the state {state}: {reason}"
    if remote.engine.is_worker_lost(text):
        return WorkersLost(message)
    return JobFailed(FailureStatus("INTERNAL", message))


def _cancel_pipeline(result: Any) -> None:
    try:
        result.cancel()
    except Exception as error:
        logger.warning("the pipeline may still be running: it could not be cancelled: %s", error)


@contextmanager
def _end_new_children() -> Iterator[None]:
    """Kill the processes that Beam starts in the block: a job server would go on."""
    before = psutil.Process().children(recursive=True)
    try:
        yield
    finally:
        for child in psutil.Process().children(recursive=True):
            if child not in before:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()


def _to_one_line(text: str) -> str:
    return " ".join(text.split()).rstrip(".")
