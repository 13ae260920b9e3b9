"""Before a version is ready: warm it, and find out whether its requests may share a call.

Merging is allowed only where made-up rows gave the same answers together and one by one. The rule of
equality: labels, trees and user code identical to the bit; elsewhere the difference may not exceed the
larger of 4 units in the last place and what the library itself shows between batches of 1, 2 and 64.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.runtimes import Runtime
from serving.runtimes.instances import Batch, concatenate, count, take

logger = logging.getLogger(__name__)

Request = tuple[Batch, dict[str, Any]]  # instances and parameters

_ROWS = 64
_REFERENCE_SIZES = (2, _ROWS)
_MERGED_SIZES = (3, 7, 32)
_ULPS = 4


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


def judge_merging(runtime: Runtime) -> Verdict:
    """Whether answers stay equal when requests share a call, tried on made-up rows."""
    if not runtime.mergeable:
        return Verdict(False, "rows are not known to be independent")
    rows = runtime.samples(_ROWS)
    if rows is None:
        return Verdict(False, "no rows could be made up to try it on")
    try:
        single = _in_batches_of(runtime, rows, 1)
        allowed = _allowed(runtime, rows, single)
        for size in _MERGED_SIZES:
            worst = _difference(single, _in_batches_of(runtime, rows, size), allowed)
            if worst:
                return Verdict(False, f"answers change when {size} rows are predicted together: {worst}")
    except Exception as error:
        return Verdict(False, f"trying it failed: {error}")
    return Verdict(True, f"same answers for {_ROWS} rows alone and together")


def _in_batches_of(runtime: Runtime, rows: Batch, size: int) -> Batch:
    starts = range(0, count(rows), size)
    return concatenate([runtime.predict(take(rows, slice(start, start + size))) for start in starts])


def _allowed(runtime: Runtime, rows: Batch, single: Batch) -> dict[str, float]:
    """Per output, the largest difference that the library itself shows between batch sizes; 0 if exact."""
    if runtime.exact:
        return dict.fromkeys(_outputs(single), 0.0)
    spread = dict.fromkeys(_outputs(single), 0.0)
    for size in _REFERENCE_SIZES:
        other = _outputs(_in_batches_of(runtime, rows, size))
        for name, values in _outputs(single).items():
            if values.dtype.kind == "f":
                spread[name] = max(spread[name], float(np.max(np.abs(values - other[name]), initial=0.0)))
    return {
        name: max(spread[name], _ULPS * _ulp(values)) if values.dtype.kind == "f" else 0.0
        for name, values in _outputs(single).items()
    }


def _difference(single: Batch, merged: Batch, allowed: dict[str, float]) -> str:
    """What differs by more than is allowed, in words; "" when nothing does."""
    together = _outputs(merged)
    for name, values in _outputs(single).items():
        other = together[name]
        if allowed[name] == 0.0:
            same = np.array_equal(values, other, equal_nan=values.dtype.kind == "f")
        else:
            same = bool(np.allclose(values, other, rtol=0.0, atol=allowed[name], equal_nan=True))
        if not same:
            return f"output {name or 'of the model'} differs by more than {allowed[name]:g}"
    return ""


def _ulp(values: NDArray[Any]) -> float:
    finite = values[np.isfinite(values)]
    return float(np.spacing(np.max(np.abs(finite)))) if finite.size else 0.0


def _outputs(batch: Batch) -> dict[str, NDArray[Any]]:
    if isinstance(batch, dict):
        return batch
    return {"": np.asarray(batch)}
