"""Faster equivalents of a loaded model, used only where they are proven and measured.

A runtime *offers* other ways to compute its predictions. In a process of its own, a *study* builds each
*candidate*, holds its answers against the plain path's by the rule of `serving.runtimes.output_equality`, and times
both for batches of several sizes. The *verdict* is stored; a node that serves the version reads it, and hands
the runtime a `Predict` that goes the fastest proven way for the number of rows of each call.

What a runtime hands to that `Predict` are only rows in which the library would find nothing to complain of,
without parameters: everything else goes the plain way and gets the library's own words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from serving.runtimes.instance_batch import Batch

Predict = Callable[[Any], Batch]

# Models of more features have no faster ways: what would prove these takes some hundred rows, and with them
# memory that a machine may not have; nor would it pay, since reading such a row takes the time there.
MAX_ACCELERATED_FEATURES = 1 << 14


class UnsuitableCandidate(Exception):
    """An offer does not fit this model, or a candidate these rows, after all; the message says why, such as
    "an unknown step: Foo"."""


class BuiltCandidate(Protocol):
    """A faster equivalent of a runtime's plain prediction, used from one thread at a time."""

    def predict(self, rows: Any, /) -> Batch:
        """What the plain path gives for the same rows: values, dtype and shape.

        `rows` are in the form the runtime declares: for an array of C order (N, width), int64 or float64.
        They are not changed, and the answer is no view of them nor of what the next call writes to. Raises
        Unsuitable for rows that it leaves to the plain path after all.
        """


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way that may be faster; `name` is what people are told, such as "matrix product" or "treelite".

    `build` converts the model. It may be slow, and raises Unsuitable where it does not fit. `save` writes
    the converted form to a file and `restore` reads it: None both, where building is as fast as reading.
    What they import is imported when they are called: an offer that is not used costs a node nothing.
    """

    name: str
    build: Callable[[], BuiltCandidate]
    save: Callable[[Any, Path], None] | None = None
    restore: Callable[[Path], BuiltCandidate] | None = None


@runtime_checkable
class AccelerableRuntime(Protocol):
    """A Runtime that knows faster ways."""

    @property
    def exact(self) -> bool:
        """As in Runtime: whether not a single bit of an answer may change."""

    def list_candidates(self) -> Sequence[Candidate]:
        """The ways to be tried, at once and without converting anything; none for most models."""

    def make_verification_rows(self) -> Sequence[Batch]:
        """Rows on which a wrong candidate would show, of about 2,000 in all and always the same.

        Made from the model: thresholds and the float32 neighbours on both sides, missing values where they
        are taken, extremes, denormals, typical rows; of each dtype that requests can have. Only rows
        that `predict` would hand to a faster way. Each batch is judged by itself, and where the model is
        not `exact` its largest answer sets the tolerance: extremes belong in a batch of their own.
        """

    def predict_reference(self, rows: Any, /) -> Batch:
        """The library's own answer, as `predict` gives it without any acceleration."""

    def set_fast_path(self, fast_path: Predict | None) -> None:
        """Have `predict` ask this for the rows it may be asked for; None: the plain way for all."""
