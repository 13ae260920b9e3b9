"""Rows as features in which distance is dissimilarity."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

from tuning.algorithms.encoding import SpaceEncoding
from tuning.algorithms.ranges import Array, Mask


@dataclass(frozen=True)
class FeatureMap:
    """`groups` has the column that each feature is of.

    A categorical parameter has a feature per value, so that its values are all as far from each other as the
    ends of a range are. Parameters that are not active lie in the middle.
    """

    encoding: SpaceEncoding
    groups: tuple[int, ...]

    @classmethod
    def build(cls, encoding: SpaceEncoding) -> Self:
        return cls(
            encoding,
            tuple(
                index
                for index, column in enumerate(encoding.columns)
                for _ in range(column.levels if column.is_categorical else 1)
            ),
        )

    def compute(self, rows: Array) -> Array:
        """The features of rows that are points, of shape (points, features)."""
        active = self.encoding.find_active(rows)
        return np.column_stack(list(self._iterate_features(rows, active)))

    def _iterate_features(self, rows: Array, active: Mask) -> Iterator[Array]:
        for index, column in enumerate(self.encoding.columns):
            if not column.is_categorical:
                yield rows[:, index]
                continue
            levels = (rows[:, index] * column.levels).astype(int)
            for level in range(column.levels):
                yield np.where((levels == level) & active[:, index], np.sqrt(0.5), 0.0)
