"""A runtime with an answer that is easy to get wrong, and candidates that do."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.acceleration.candidates import BuiltCandidate, Candidate, Predict, UnsuitableCandidate
from serving.frameworks import Framework, load_frameworks
from serving.model_schema import ModelSchema
from serving.runtimes import ArrayFormat
from serving.runtimes.instance_batch import Batch
from serving.runtimes.schema_inference import unknown_schema

Numbers = NDArray[Any]
WIDTH = 3


def slow(rows: Numbers) -> Numbers:
    """The library: sums, with NaN as -1, and ties between the first two columns decided for the first."""
    time.sleep(0.0005)
    return quick(rows)


def quick(rows: Numbers) -> Numbers:
    """The same at once."""
    sums = np.nan_to_num(rows.astype(np.float64), nan=-1.0).sum(axis=1)
    return np.asarray(np.where(rows[:, 0] >= rows[:, 1], sums, -sums))


class Fixed:
    """A candidate made of a function."""

    def __init__(self, predict: Predict) -> None:
        self.predict = predict


@dataclass
class Fake:
    """A Runtime with the offers it is given."""

    given: Sequence[Candidate]
    exact: bool = True
    mergeable: bool = True
    framework: Framework = load_frameworks()["SCIKIT_LEARN"]
    warnings: tuple[str, ...] = ()
    faster: Predict | None = None
    recorded: Sequence[tuple[Batch, dict[str, Any]]] = ()

    def list_candidates(self) -> Sequence[Candidate]:
        return self.given

    def make_verification_rows(self) -> Sequence[Batch]:
        rows = np.random.default_rng(0).standard_normal((40, WIDTH))
        rows[0] = (-1.0, 1.0, 0.0)  # whose answer is -0.0
        gaps, ties = rows.copy(), rows.copy()
        gaps[::3, 2] = np.nan
        ties[:, 1] = ties[:, 0]
        return [rows, gaps, ties, np.arange(30).reshape(10, WIDTH)]

    def predict_reference(self, rows: Any, /) -> Batch:
        return slow(rows)

    def set_fast_path(self, fast_path: Predict | None) -> None:
        self.faster = fast_path

    def input_format(self, parameters: Mapping[str, Any]) -> ArrayFormat:
        return ArrayFormat(WIDTH, nullable=True)

    def predict(self, instances: Any, /, **parameters: Any) -> Batch:
        return self.predict_reference(instances) if self.faster is None else self.faster(instances)

    def make_synthetic_rows(self, count: int) -> Batch | None:
        return np.random.default_rng(1).standard_normal((count, WIDTH))

    def warmup_requests(self) -> Iterable[tuple[Batch, dict[str, Any]]]:
        return self.recorded

    def infer_schema(self, examples: Sequence[Any] = ()) -> ModelSchema:
        return unknown_schema("fake")


def offer(name: str, predict: Predict) -> Candidate:
    """An offer without a converted form."""
    return Candidate(name, lambda: Fixed(predict))


class Scale:
    """A candidate with a converted form: one number, which is 1.0 if it is right."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def predict(self, rows: Any, /) -> Batch:
        return quick(rows) * self.factor


def _save(candidate: Any, file: Path) -> None:
    file.write_text(str(candidate.factor))


def kept(name: str = "kept") -> Candidate:
    """An offer with a converted form."""
    return Candidate(
        name, lambda: Scale(1.0), save=_save, restore=lambda file: Scale(float(file.read_text()))
    )


def _raise(_: Any) -> Any:
    raise RuntimeError("no luck")


def _refuse() -> BuiltCandidate:
    raise UnsuitableCandidate("an unknown step: Foo")


def _crash(_: Any) -> Any:
    faulthandler.disable()  # pytest's would print all of it
    os.kill(os.getpid(), signal.SIGSEGV)


def _hang(_: Any) -> Any:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    time.sleep(60)


def _changing(rows: Numbers) -> Numbers:
    answers = quick(rows)
    rows[:] = 0
    return answers


def reusing() -> Candidate:
    """Answers in memory that the next call writes to."""
    memory = np.empty(10_000)

    def predict(rows: Numbers) -> Numbers:
        memory[: len(rows)] = quick(rows)
        return memory[: len(rows)]

    return offer("reusing", predict)


def _only_together(rows: Numbers) -> Numbers:
    return quick(rows) if len(rows) > 1 else quick(rows) + 1


def _only_few(rows: Numbers) -> Numbers:
    return quick(rows) if len(rows) <= 150 else -quick(rows)


def _without_zero_signs(rows: Numbers) -> Numbers:
    return quick(rows) + 0.0


WRONG: Mapping[str, Callable[[Numbers], Any]] = {
    "one bit": lambda rows: np.nextafter(quick(rows), np.inf),
    "missing values": lambda rows: quick(np.nan_to_num(rows)),
    "ties": lambda rows: np.where(
        rows[:, 0] > rows[:, 1], 1, -1
    ) * np.nan_to_num(rows.astype(float), nan=-1.0).sum(axis=1),
    "dtype": lambda rows: quick(rows).astype(np.float32),
    "shape": lambda rows: quick(rows)[:, None],
    "form": lambda rows: quick(rows).tolist(),
    "number": lambda rows: quick(rows)[:-1],
    "one row": _only_together,
    "many rows": _only_few,
    "zeros": _without_zero_signs,
    "changing": _changing,
    "raising": _raise,
}  # fmt: skip
REFUSING = Candidate("refusing", _refuse)
CRASHING = offer("crashing", _crash)
HANGING = offer("hanging", _hang)
GOOD = offer("good", quick)
