"""What is known of a study when a point is chosen."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from tuning.algorithms.encoding import SpaceEncoding
from tuning.algorithms.ranges import Array
from tuning.messages import KnownTrial
from tuning.space import Point, PointKey, make_key
from tuning.study import Study


@dataclass(frozen=True)
class History:
    """Rows of the trials by how they stand: completed with `objectives` (one column per metric), or not.

    `taken` has the keys of all of them: no point is tried twice. `near` has those of their rows.
    """

    study: Study
    encoding: SpaceEncoding
    completed: Array
    objectives: Array
    pending: Array
    infeasible: Array
    taken: frozenset[PointKey]
    near: frozenset[bytes]

    @classmethod
    def build(cls, study: Study, trials: Iterable[KnownTrial]) -> Self:
        """Trials in the order of their numbers, so that equal ones make equal histories."""
        ordered = sorted(trials, key=lambda trial: trial.number)
        encoding = SpaceEncoding(study.space)
        completed = [trial for trial in ordered if trial.objectives]
        rows = encoding.encode([trial.parameters for trial in ordered])
        measured = np.array([bool(trial.objectives) for trial in ordered], dtype=np.bool_)
        infeasible = np.array([trial.infeasible for trial in ordered], dtype=np.bool_)
        objectives = np.array([trial.objectives for trial in completed], dtype=np.float64)
        return cls(
            study,
            encoding,
            completed=rows[measured],
            objectives=objectives.reshape(-1, len(study.metrics)),
            pending=rows[~measured & ~infeasible],
            infeasible=rows[infeasible],
            taken=frozenset(make_key(trial.parameters) for trial in ordered),
            near=frozenset(_make_row_keys(rows)),
        )

    def has(self, point: Point) -> bool:
        return make_key(point) in self.taken

    def filter_new(self, rows: Array) -> Array:
        """Rows without those of taken points. Points of wide ranges may have rows that are almost equal."""

        @functools.cache
        def is_taken(row: bytes) -> bool:
            return self.has(self.encoding.decode(np.frombuffer(row)))

        pairs = zip(rows, _make_row_keys(rows), strict=True)
        return rows[[key not in self.near or not is_taken(row.tobytes()) for row, key in pairs]]

    def add_pending(self, point: Point) -> History:
        row = self.encoding.encode([point])
        return replace(
            self,
            pending=np.concatenate([self.pending, row]),
            taken=self.taken | {make_key(point)},
            near=self.near.union(_make_row_keys(row)),
        )


def _make_row_keys(rows: Array) -> list[bytes]:
    """A key for each row, equal for those that differ by rounding alone, or by little."""
    return [row.tobytes() for row in np.round(rows, 10) + 0.0]
