"""Model warm-up, and the check whether requests may be batched.

Batching is allowed only if synthetic rows give the same predictions in a batch and one by one, by the rule of
`serving.runtimes.output_equality`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from serving.acceleration.candidates import AccelerableRuntime, Predict
from serving.runtimes import Runtime, output_equality
from serving.runtimes.instance_batch import Batch, count_rows, take_rows
from serving.runtimes.model_check import PredictionTrial, make_failed_trial
from serving.runtimes.output_equality import make_synthetic_batch

logger = logging.getLogger(__name__)

RuntimeCall = tuple[Batch, dict[str, Any]]  # instances and parameters

_ROWS = 64
_BATCH_SIZES = (3, 7, 32)
# Models with slower calls predict fewer rows one by one, but in the same batch sizes: these show whether rows
# influence each other, and whether kernels change with the batch size.
_SLOW_SECONDS = 0.001
_ROWS_IF_SLOW = max(_BATCH_SIZES)
# Enough to refuse a prepared finding for a model whose rows influence each other.
_ROWS_IF_PREPARED = 4


@dataclass(frozen=True, slots=True)
class BatchingDecision:
    """Whether requests may be batched, and why or why not; `max_rows` limits a batch, None: any."""

    merge: bool
    reason: str
    max_rows: int | None = None

    def compute_max_batch_rows(self, limit: int) -> int:
        """How many rows a batch may have where `limit` is the setting; 1: no batching."""
        if not self.merge:
            return 1
        return limit if self.max_rows is None else min(limit, self.max_rows)


BatchCheckSteps = Generator[None, None, BatchingDecision]
"""A batch-equivalence check in steps, one model call each."""


@dataclass(frozen=True, slots=True)
class ModelWarmupResult:
    """The seconds of the last call, None when nothing could be run, and the outcomes of recorded requests."""

    seconds: float | None
    recorded: tuple[PredictionTrial, ...] = ()


def warm_up_model(runtime: Runtime, sizes: Sequence[int]) -> ModelWarmupResult:
    """Run recorded warm-up requests, or synthetic rows of these batch sizes.

    Synthetic rows that a model refuses are logged and change nothing.
    """
    seconds = None
    trials: list[PredictionTrial] = []
    for number, request in enumerate(runtime.warmup_requests(), 1):
        what = f"The recorded warm-up request {number}"
        try:
            seconds = _time_call(runtime, request)
            trials.append(PredictionTrial(what, is_recorded=True))
        except Exception as error:
            logger.warning("a warm-up request failed: %s", error)
            trials.append(make_failed_trial(what, error, is_recorded=True))
    for request in () if trials else _make_warmup_calls(runtime, sizes):
        taken = _try_call(runtime, request)
        seconds = seconds if taken is None else taken
    return ModelWarmupResult(seconds, tuple(trials))


def warm_up_model_briefly(runtime: Runtime) -> None:
    """Run just enough for the next call to take no longer than usual: one recorded request per set of
    parameters, or one synthetic row. Its duration is not typical."""
    calls: dict[str, RuntimeCall] = {}
    for request in runtime.warmup_requests():
        calls.setdefault(repr(sorted(request[1].items())), request)
    for request in calls.values() or itertools.islice(_make_warmup_calls(runtime, (1,)), 1):
        _try_call(runtime, request)


def _try_call(runtime: Runtime, request: RuntimeCall) -> float | None:
    """The seconds a call takes, None if it fails."""
    try:
        return _time_call(runtime, request)
    except Exception as error:
        logger.warning("a warm-up request failed: %s", error)
        return None


def _time_call(runtime: Runtime, request: RuntimeCall) -> float:
    instances, parameters = request
    start = time.perf_counter()
    runtime.predict(instances, **parameters)
    return time.perf_counter() - start


def _make_warmup_calls(runtime: Runtime, sizes: Sequence[int]) -> Iterable[RuntimeCall]:
    for size in sizes:
        rows = make_synthetic_batch(runtime, size)
        if rows is not None:
            # Twice: the first call of a size pays for memory and threads, the second is typical.
            yield from ((rows, {}), (rows, {}))


def check_batch_equivalence(
    runtime: Runtime, accelerated: Predict | None = None, *, row_count: int = _ROWS
) -> BatchCheckSteps:
    """Check on synthetic rows whether predictions stay equal in batches.

    An accelerated strategy and the library itself, which replaces it when it is withdrawn, must both give the
    library's predictions of single rows.
    """
    if not runtime.mergeable:
        return BatchingDecision(False, "the model does not declare independent rows")
    rows = make_synthetic_batch(runtime, row_count)
    if rows is None:
        return BatchingDecision(False, "no synthetic rows can be made for it")
    try:
        return (yield from _compare_batched_answers(runtime, accelerated, rows))
    except Exception as error:
        return BatchingDecision(False, f"the check failed: {error}")


def confirm_batch_equivalence(
    runtime: Runtime, accelerated: Predict | None, prepared: BatchingDecision
) -> BatchCheckSteps:
    """What a prepared record says, if a few rows show nothing else: anybody may have written it."""
    if not prepared.merge:
        return prepared
    found = yield from check_batch_equivalence(runtime, accelerated, row_count=_ROWS_IF_PREPARED)
    return prepared if found.merge else found


def _compare_batched_answers(runtime: Runtime, accelerated: Predict | None, rows: Batch) -> BatchCheckSteps:
    reference = runtime.predict_reference if isinstance(runtime, AccelerableRuntime) else runtime.predict
    row_count = count_rows(rows)
    if (yield from _measure_if_slow(reference, take_rows(rows, slice(0, 1)))):
        rows = take_rows(rows, slice(0, _ROWS_IF_SLOW))
    single = yield from output_equality.predict_stepwise(reference, rows, 1)
    own: output_equality.Tolerance = {}
    if not runtime.exact:
        # How far the library differs from itself between batches of 1, 2 and 64 rows.
        others: list[Batch] = []
        for size in output_equality.BATCH_SIZES[1:]:
            others += [(yield from output_equality.predict_stepwise(reference, rows, size))]
        own = output_equality.measure_spread(single, others)
        if worst := output_equality.describe_dependence(single, own):
            return BatchingDecision(False, f"rows that are predicted together influence each other: {worst}")
    allowed = output_equality.compute_tolerance(single, own, exact=runtime.exact)
    sizes = sorted({min(size, count_rows(rows)) for size in _BATCH_SIZES})
    tries = [(reference, size) for size in sizes]
    tries += [(accelerated, size) for size in (1, *sizes) if accelerated is not None]
    for predict, size in tries:
        batched = yield from output_equality.predict_stepwise(predict, rows, size)
        if worst := output_equality.describe_difference(single, batched, allowed):
            return BatchingDecision(False, f"answers change when {size} rows are predicted together: {worst}")
    # Larger batches than could be tried are not made.
    max_rows = None if row_count == _ROWS else row_count
    return BatchingDecision(
        True, f"predictions of {count_rows(rows)} rows are equal alone and batched", max_rows
    )


def _measure_if_slow(reference: Predict, row: Batch) -> Generator[None, None, bool]:
    """Whether a call takes long; the first one is not timed."""
    reference(row)
    yield
    start = time.perf_counter()
    reference(row)
    return time.perf_counter() - start > _SLOW_SECONDS


# The pause after a model call, as a multiple of its duration.
_REST_FACTOR = 4

SubmitWork = Callable[[Callable[[], None]], object]
"""Runs work where calls compute."""


class BatchEquivalenceCheck:
    """A batch-equivalence check that can be interrupted; `decision` is set when it is complete."""

    def __init__(self, steps: BatchCheckSteps) -> None:
        self._steps = steps
        self.decision: BatchingDecision | None = None

    def run_for(self, seconds: float) -> None:
        """Continue for that long, with one model call at least."""
        started = time.perf_counter()
        while self.decision is None:
            try:
                next(self._steps)
            except StopIteration as end:
                self.decision = end.value
            if time.perf_counter() - started >= seconds:
                break


async def finish_check(check: BatchEquivalenceCheck, submit_work: SubmitWork) -> BatchingDecision:
    """Complete the check between requests."""
    while check.decision is None:
        seconds = await run_and_time(submit_work, lambda: check.run_for(0.0))
        await asyncio.sleep(_REST_FACTOR * seconds)
    return check.decision


async def run_and_time(submit_work: SubmitWork, work: Callable[[], None]) -> float:
    """The seconds that work took where calls compute. `work` never raises."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[float] = loop.create_future()

    def run_timed() -> None:
        started = time.perf_counter()
        work()
        seconds = time.perf_counter() - started
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(set_result, seconds)

    def set_result(seconds: float) -> None:
        if not done.done():
            done.set_result(seconds)

    submit_work(run_timed)
    return await done
