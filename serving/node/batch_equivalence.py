"""Before a version is ready: warm it, and find out whether its requests may share a call.

Merging is allowed only where made-up rows gave the same answers together and one by one, by the rule of
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
from serving.runtimes.synthetic_rows import make_bounded_rows

logger = logging.getLogger(__name__)

RuntimeCall = tuple[Batch, dict[str, Any]]  # instances and parameters

_ROWS = 64
_BATCH_SIZES = (3, 7, 32)
# A model whose calls take so many seconds is asked for fewer rows one by one, but in calls of the same sizes,
# which is what could tell: whether rows influence each other, and whether kernels change with their number.
_SLOW_SECONDS = 0.001
_ROWS_IF_SLOW = max(_BATCH_SIZES)


@dataclass(frozen=True, slots=True)
class BatchingDecision:
    """Whether requests may be merged, and why or why not; `most` is how many rows at a time, None: any."""

    merge: bool
    reason: str
    max_rows: int | None = None

    def limit_batch_rows(self, limit: int) -> int:
        """How many rows a merged call may have where `limit` is the setting; 1: no merging."""
        if not self.merge:
            return 1
        return limit if self.max_rows is None else min(limit, self.max_rows)


BatchCheckSteps = Generator[None, None, BatchingDecision]
"""A verdict in the making, with a pause after each call of the model."""


@dataclass(frozen=True, slots=True)
class ModelWarmupResult:
    """The seconds of the last call, None when nothing could be run, and what became of recorded requests."""

    seconds: float | None
    recorded: tuple[PredictionTrial, ...] = ()


def warm_up_model(runtime: Runtime, sizes: Sequence[int]) -> ModelWarmupResult:
    """Run recorded warm-up requests, or made-up rows of these batch sizes.

    Rows that a model refuses are logged and change nothing: they were only made up.
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
    for request in () if trials else _make_synthetic_calls(runtime, sizes):
        taken = _try_call(runtime, request)
        seconds = seconds if taken is None else taken
    return ModelWarmupResult(seconds, tuple(trials))


def warm_up_model_briefly(runtime: Runtime) -> None:
    """Run just enough for the next call to be an ordinary one: every way the model was recorded to be asked,
    once, or one made-up row. How long that takes is not typical."""
    ways: dict[str, RuntimeCall] = {}
    for request in runtime.warmup_requests():
        ways.setdefault(repr(sorted(request[1].items())), request)
    for request in ways.values() or itertools.islice(_make_synthetic_calls(runtime, (1,)), 1):
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


def _make_synthetic_calls(runtime: Runtime, sizes: Sequence[int]) -> Iterable[RuntimeCall]:
    for size in sizes:
        rows = make_bounded_rows(runtime, size)
        if rows is not None:
            # Twice: the first call of a size pays for memory and threads, the second is typical.
            yield from ((rows, {}), (rows, {}))


def check_batch_equivalence(runtime: Runtime, faster: Predict | None = None) -> BatchCheckSteps:
    """Find out whether answers stay equal when requests share a call, tried on made-up rows.

    Where `faster` serves, it must keep to the plain path's answers to single rows, and so must the plain
    path itself, which takes over whenever the faster one cannot be used.
    """
    if not runtime.mergeable:
        return BatchingDecision(False, "rows are not known to be independent")
    rows = make_bounded_rows(runtime, _ROWS)
    if rows is None:
        return BatchingDecision(False, "no rows could be made up to try it on")
    try:
        return (yield from _compare_batched_answers(runtime, faster, rows))
    except Exception as error:
        return BatchingDecision(False, f"trying it failed: {error}")


def _compare_batched_answers(runtime: Runtime, faster: Predict | None, rows: Batch) -> BatchCheckSteps:
    plain = runtime.predict_reference if isinstance(runtime, AccelerableRuntime) else runtime.predict
    there = count_rows(rows)
    if (yield from _is_slow(plain, take_rows(rows, slice(0, 1)))):
        rows = take_rows(rows, slice(0, _ROWS_IF_SLOW))
    single = yield from output_equality.predict_stepwise(plain, rows, 1)
    own: output_equality.Tolerance = {}
    if not runtime.exact:
        # How far the library differs from itself between batches of 1, 2 and 64 rows.
        others: list[Batch] = []
        for size in output_equality.BATCH_SIZES[1:]:
            others += [(yield from output_equality.predict_stepwise(plain, rows, size))]
        own = output_equality.measure_spread(single, others)
    allowed = output_equality.compute_tolerance(single, own, exact=runtime.exact)
    sizes = sorted({min(size, count_rows(rows)) for size in _BATCH_SIZES})
    tries = [(plain, size) for size in sizes]
    tries += [(faster, size) for size in (1, *sizes) if faster is not None]
    for predict, size in tries:
        merged = yield from output_equality.predict_stepwise(predict, rows, size)
        if worst := output_equality.describe_difference(single, merged, allowed):
            return BatchingDecision(False, f"answers change when {size} rows are predicted together: {worst}")
    # What cannot be tried with many rows at once is not done with many either.
    most = None if there == _ROWS else there
    return BatchingDecision(True, f"same answers for {count_rows(rows)} rows alone and together", most)


def _is_slow(plain: Predict, row: Batch) -> Generator[None, None, bool]:
    """Whether a call takes long; the first one may pay for more than itself."""
    plain(row)
    yield
    start = time.perf_counter()
    plain(row)
    return time.perf_counter() - start > _SLOW_SECONDS


# A call is followed by a rest so many times as long.
_REST_FACTOR = 4

SubmitWork = Callable[[Callable[[], None]], object]
"""Runs work where calls compute."""


class BatchEquivalenceCheck:
    """A verdict in the making; `verdict` is there when nothing is left to be tried."""

    def __init__(self, steps: BatchCheckSteps) -> None:
        self._steps = steps
        self.decision: BatchingDecision | None = None

    def run_for(self, seconds: float) -> None:
        """Go on for that long, with one call at least."""
        begun = time.perf_counter()
        while self.decision is None:
            try:
                next(self._steps)
            except StopIteration as end:
                self.decision = end.value
            if time.perf_counter() - begun >= seconds:
                break


async def finish_check(check: BatchEquivalenceCheck, submit_work: SubmitWork) -> BatchingDecision:
    """The verdict, arrived at between requests."""
    while check.decision is None:
        seconds = await run_and_time(submit_work, lambda: check.run_for(0.0))
        await asyncio.sleep(_REST_FACTOR * seconds)
    return check.decision


async def run_and_time(submit_work: SubmitWork, work: Callable[[], None]) -> float:
    """The seconds that work took where calls compute. `work` never raises."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[float] = loop.create_future()

    def run_timed() -> None:
        begun = time.perf_counter()
        work()
        seconds = time.perf_counter() - begun
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(set_result, seconds)

    def set_result(seconds: float) -> None:
        if not done.done():
            done.set_result(seconds)

    submit_work(run_timed)
    return await done
