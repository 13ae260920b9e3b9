"""Candidates: faster equivalents of a loaded model, used only where they are verified and measured.

A runtime lists its candidates. In a process of its own, the *verification* builds each of them, compares its
answers with the *reference*, which is the library's own prediction, by the rule of
`serving.runtimes.output_equality`, and times both for batches of several sizes. The result is stored as an
*acceleration record*. A node that serves the version reads the record and hands the runtime a `Predict` that
uses the fastest verified *strategy* for the number of rows of each call.

A runtime hands to that `Predict` only rows that the library would accept, and none with parameters. The
reference predicts everything else, and raises the library's own errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from serving.runtimes.instance_batch import Batch

Predict = Callable[[Any], Batch]

# Models of more features have no candidates. Verification needs some hundred rows, which could take more
# memory than a machine has; and there is no gain, since reading such rows takes most of the time.
MAX_ACCELERATED_FEATURES = 1 << 14


class UnsuitableCandidate(Exception):
    """A candidate does not fit this model, or a built one these rows; the message is the reason, such as
    "an unknown step: Foo"."""


class BuiltCandidate(Protocol):
    """A candidate that can predict, used from one thread at a time."""

    def predict(self, rows: Any, /) -> Batch:
        """Returns what the reference returns for the same rows: values, dtype and shape.

        `rows` are in the runtime's input format: arrays are in C order, (N, width), int64 or float64.
        They are not modified. The result is no view of them, nor of memory that the next call writes to.
        Raises UnsuitableCandidate for rows that the reference is to predict.
        """


@dataclass(frozen=True, slots=True)
class Candidate:
    """A strategy that may be faster. The API shows its `name`, such as "matrix product" or "treelite".

    `build` converts the model. It may be slow, and raises UnsuitableCandidate for models that do not fit.
    `save` writes the converted model to a file and `restore` reads it; both are None if building is as fast
    as reading. They import what they need when they are called: an unused candidate costs a node nothing.
    """

    name: str
    build: Callable[[], BuiltCandidate]
    save: Callable[[Any, Path], None] | None = None
    restore: Callable[[Path], BuiltCandidate] | None = None


@runtime_checkable
class AccelerableRuntime(Protocol):
    """A Runtime that has candidates."""

    @property
    def exact(self) -> bool:
        """As in Runtime: whether not a single bit of an answer may change."""

    def list_candidates(self) -> Sequence[Candidate]:
        """Fast, since it converts nothing; empty for most models."""

    def make_verification_rows(self) -> Sequence[Batch]:
        """Rows that reveal a wrong candidate, about 2,000 in all and always the same.

        Made from the model: thresholds and the float32 neighbours on both sides, missing values where they
        are taken, extremes, denormals, typical rows; of each dtype that requests can have. Only rows that
        `predict` would hand to the fast path. Each batch is compared by itself, and where the model is not
        `exact` its largest answer sets the tolerance: extremes belong in a batch of their own.
        """

    def predict_reference(self, rows: Any, /) -> Batch:
        """Predicts with the library alone, without acceleration."""

    def set_fast_path(self, fast_path: Predict | None) -> None:
        """Has `predict` call this for the rows that it accepts; None: the reference predicts all."""
