"""Before a version is ready: warm it, and find out whether its requests may share a call.

Merging is allowed only where made-up rows gave the same answers together and one by one, by the rule of
`serving.runtimes.equality`.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from serving.runtimes import Runtime, equality
from serving.runtimes.acceleration import Accelerable, Predict
from serving.runtimes.instances import Batch

logger = logging.getLogger(__name__)

Request = tuple[Batch, dict[str, Any]]  # instances and parameters

_ROWS = 64
_MERGED_SIZES = (3, 7, 32)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether requests may be merged, and why or why not."""

    merge: bool
    reason: str


def warm(runtime: Runtime, sizes: Sequence[int]) -> float | None:
    """Run recorded warm-up requests, or made-up rows of these batch sizes.

    Returns the seconds of the last call, None when nothing could be run. Rows that a model refuses are
    logged and change nothing: they were only made up.
    """
    seconds = None
    recorded = iter(runtime.warmup_requests())
    first = next(recorded, None)
    requests = _made_up(runtime, sizes) if first is None else itertools.chain((first,), recorded)
    for request in requests:
        taken = _run(runtime, request)
        seconds = seconds if taken is None else taken
    return seconds


def warm_briefly(runtime: Runtime) -> None:
    """Run just enough for the next call to be an ordinary one: every way the model was recorded to be asked,
    once, or one made-up row. How long that takes is not typical."""
    ways: dict[str, Request] = {}
    for request in runtime.warmup_requests():
        ways.setdefault(repr(sorted(request[1].items())), request)
    for request in ways.values() or itertools.islice(_made_up(runtime, (1,)), 1):
        _run(runtime, request)


def _run(runtime: Runtime, request: Request) -> float | None:
    """The seconds a call takes, None if it fails."""
    instances, parameters = request
    start = time.perf_counter()
    try:
        runtime.predict(instances, **parameters)
    except Exception as error:
        logger.warning("a warm-up request failed: %s", error)
        return None
    return time.perf_counter() - start


def _made_up(runtime: Runtime, sizes: Sequence[int]) -> Iterable[Request]:
    for size in sizes:
        rows = runtime.samples(size)
        if rows is not None:
            # Twice: the first call of a size pays for memory and threads, the second is typical.
            yield from ((rows, {}), (rows, {}))


def judge_merging(runtime: Runtime, faster: Predict | None = None) -> Verdict:
    """Whether answers stay equal when requests share a call, tried on made-up rows.

    Where `faster` serves, it must keep to the plain path's answers to single rows, and so must the plain
    path itself, which takes over whenever the faster one cannot be used.
    """
    if not runtime.mergeable:
        return Verdict(False, "rows are not known to be independent")
    rows = runtime.samples(_ROWS)
    if rows is None:
        return Verdict(False, "no rows could be made up to try it on")
    plain = runtime.plain if isinstance(runtime, Accelerable) else runtime.predict
    try:
        single = equality.in_batches_of(plain, rows, 1)
        own = _own_spread(plain, rows, single) if not runtime.exact else {}
        allowed = equality.tolerance(single, own, exact=runtime.exact)
        tries = [(plain, size) for size in _MERGED_SIZES]
        tries += [(faster, size) for size in (1, *_MERGED_SIZES) if faster is not None]
        for predict, size in tries:
            merged = equality.in_batches_of(predict, rows, size)
            if worst := equality.difference(single, merged, allowed):
                return Verdict(False, f"answers change when {size} rows are predicted together: {worst}")
    except Exception as error:
        return Verdict(False, f"trying it failed: {error}")
    return Verdict(True, f"same answers for {_ROWS} rows alone and together")


def _own_spread(predict: Predict, rows: Batch, single: Batch) -> equality.Tolerance:
    """How far the library differs from itself between batches of 1, 2 and 64 rows."""
    others = [equality.in_batches_of(predict, rows, size) for size in equality.SIZES if size > 1]
    return equality.spread(single, others)
