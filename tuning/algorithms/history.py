"""What is known of a study when a point is chosen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from tuning.algorithms.encoding import Array, SpaceEncoding
from tuning.messages import KnownTrial
from tuning.space import Point
from tuning.study import Study


@dataclass(frozen=True)
class History:
    """Rows of the trials by how they stand: completed with `objectives` (one column per metric), or not.

    `taken` has the keys of all of them: no point is tried twice.
    """

    study: Study
    encoding: SpaceEncoding
    completed: Array
    objectives: Array
    pending: Array
    infeasible: Array
    taken: frozenset[bytes]

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
            taken=frozenset(make_row_keys(rows)),
        )

    def has(self, row: Array) -> bool:
        return not self.taken.isdisjoint(make_row_keys(row[None]))

    def filter_new(self, rows: Array) -> Array:
        return rows[[key not in self.taken for key in make_row_keys(rows)]]

    def add_pending(self, point: Point) -> History:
        row = self.encoding.encode([point])
        return replace(
            self, pending=np.concatenate([self.pending, row]), taken=self.taken.union(make_row_keys(row))
        )


def make_row_keys(rows: Array) -> list[bytes]:
    """A key for each row, equal for those that differ by rounding alone."""
    return [row.tobytes() for row in np.round(rows, 10) + 0.0]
