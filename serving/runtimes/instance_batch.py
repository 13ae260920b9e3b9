"""Instances and predictions as values: rows, one array, named columns, or whole tensors.

The first three have a count, can be put behind each other and cut apart again; tensors are one piece.
Instances going in and predictions coming out are the same kind of thing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# What is larger becomes infinite in the float32 that trees compute with.
MAX_FLOAT32 = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True, eq=False)
class WholeTensors:
    """Whole tensors by name, of which no rows are promised; computed in a call of their own."""

    values: Mapping[str, NDArray[Any]]

    def __len__(self) -> int:
        """They are answered as one row."""
        return 1


class DependentColumns(dict[str, NDArray[Any]]):
    """Named columns of undeclared shapes: their rows may depend on each other, so they share no call."""


Batch = list[Any] | NDArray[Any] | dict[str, NDArray[Any]] | WholeTensors


def count_rows(batch: Batch) -> int:
    """The number of rows; 1 for tensors, which are answered as one."""
    if isinstance(batch, dict):
        return len(next(iter(batch.values())))
    return len(batch)


def count_bytes(batch: Batch) -> int:
    """The bytes of a batch's arrays; 0 for plain rows, of which that is not known."""
    if isinstance(batch, dict):
        return sum(column.nbytes for column in batch.values())
    if isinstance(batch, WholeTensors):
        return sum(tensor.nbytes for tensor in batch.values.values())
    return 0 if isinstance(batch, list) else batch.nbytes


def concatenate_batches(batches: Sequence[Batch]) -> Batch:
    """One batch with the rows of all, in order. All must have the same form; tensors stay alone."""
    first = batches[0]
    if len(batches) == 1:
        return first
    if isinstance(first, dict):
        return {name: np.concatenate([batch[name] for batch in batches]) for name in first}  # type: ignore[call-overload,index]
    if isinstance(first, list):
        return [row for batch in batches for row in batch]  # type: ignore[union-attr]
    return np.concatenate(batches)  # type: ignore[arg-type]


def split_batch(batch: Batch, counts: Iterable[int]) -> Iterator[Batch]:
    """Cut a batch into pieces of these many rows; views, not copies."""
    start = 0
    for size in counts:
        yield take_rows(batch, slice(start, start + size))
        start += size


def take_rows(batch: Batch, rows: slice) -> Batch:
    """The rows of a slice; of tensors there is only the whole."""
    if isinstance(batch, dict):
        return {name: column[rows] for name, column in batch.items()}
    return batch if isinstance(batch, WholeTensors) else batch[rows]


def copy_batch(batch: Batch) -> Batch:
    """The same rows in memory of their own."""
    if isinstance(batch, dict):
        return {name: column.copy() for name, column in batch.items()}
    if isinstance(batch, WholeTensors):
        return WholeTensors({name: tensor.copy() for name, tensor in batch.values.items()})
    return batch.copy()


def concatenation_key(batch: Batch) -> tuple[object, ...]:
    """What two batches must share to be concatenated: form, dtypes and row shapes. Some fit no others."""
    match batch:
        case DependentColumns():
            return (object(),)
        case np.ndarray():
            return (batch.dtype.str, batch.shape[1:])
        case dict():
            return tuple((name, column.dtype.str, column.shape[1:]) for name, column in batch.items())
        case WholeTensors():
            return (batch,)
        case _:
            return ("rows",)


def is_finite_float32(rows: Any, *, allow_nan: bool = False) -> bool:
    """Whether it is an array of numbers that are finite in float32 too; with `allow_nan` some may be NaN."""
    if not isinstance(rows, np.ndarray) or not rows.size:
        return False
    if rows.dtype.kind in "iu":
        return True
    # The sum of the squares is a third of the cost of the largest, and small only if all of them are.
    if rows.dtype == np.float64 and np.vdot(rows, rows) <= MAX_FLOAT32:
        return True
    numbers = np.abs(rows)
    if allow_nan:  # of these alone, the largest is NaN
        return not np.fmax.reduce(numbers, axis=None) > MAX_FLOAT32
    return bool(np.maximum.reduce(numbers, axis=None) <= MAX_FLOAT32)
