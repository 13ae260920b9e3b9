"""Points by chance, spread evenly: a scrambled Sobol sequence."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator

import numpy as np
from scipy.stats import qmc

from tuning.algorithms.encoding import SpaceEncoding
from tuning.algorithms.history import History
from tuning.algorithms.ranges import Array
from tuning.space import Value, count_points, iterate_points
from tuning.study import Study

# Points that are drawn in search of one that is new.
_TRIES = 256


def propose_point(history: History, number: int) -> dict[str, Value] | None:
    """The point at the trial's place in the sequence, or another if it is taken; None if none is new."""
    points = map(history.encoding.decode, _iterate_rows(history, number))
    return next((point for point in points if not history.has(point)), None) or find_free_point(history)


def _iterate_rows(history: History, number: int) -> Iterator[Array]:
    yield from draw_rows(history.encoding, make_seed(history.study, 0), 1, skip=number - 1)
    yield from draw_rows(history.encoding, make_seed(history.study, number), _TRIES)


def find_free_point(history: History) -> dict[str, Value] | None:
    """The first point of a finite space that is not taken."""
    if count_points(history.study.space) is None:
        return None
    return next((point for point in iterate_points(history.study.space) if not history.has(point)), None)


def make_seed(study: Study, number: int) -> int:
    """The seed for what concerns one trial; 0 for what concerns all trials of the study."""
    text = f"{study.uid}/{study.seed}/{number}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def draw_rows(encoding: SpaceEncoding, seed: int, count: int, skip: int = 0) -> Array:
    """The rows of the sequence after the first `skip`, as points of the space."""
    sobol = qmc.Sobol(len(encoding.columns), rng=np.random.default_rng(seed))
    if skip:
        sobol.fast_forward(skip)
    with warnings.catch_warnings():
        # Counts that are no power of two are less balanced, which is no matter here.
        warnings.simplefilter("ignore", UserWarning)
        return encoding.snap(np.asarray(sobol.random(count)))
