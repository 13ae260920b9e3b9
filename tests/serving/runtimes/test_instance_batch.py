"""Whole tensors among the batches that have rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from serving.errors import InvalidOutputs
from serving.runtimes.instance_batch import (
    MAX_FLOAT32,
    WholeTensors,
    concatenate_batches,
    concatenation_key,
    copy_batch,
    count_bytes,
    count_rows,
    is_finite_float32,
    split_batch,
    take_rows,
)
from serving.runtimes.json_codec import encode_bodies, encode_predictions


def tensors() -> WholeTensors:
    return WholeTensors({"a": np.ones((2, 3), np.float32), "b": np.array(1)})


def test_tensors_are_one_piece() -> None:
    """They count as one, and are cut nowhere."""
    whole = tensors()

    assert (count_rows(whole), count_bytes(whole)) == (1, 2 * 3 * 4 + 8)
    assert concatenate_batches([whole]) is whole
    assert list(split_batch(whole, [1])) == [whole]
    assert take_rows(whole, slice(0, 64)) is whole


def test_tensors_share_a_call_with_no_others() -> None:
    """Not even with equal ones."""
    whole = tensors()

    assert concatenation_key(whole) == concatenation_key(whole) != concatenation_key(tensors())


def test_a_copy_has_memory_of_its_own() -> None:
    whole = tensors()
    copy = copy_batch(whole)

    assert isinstance(copy, WholeTensors)
    whole.values["a"][:] = 2
    assert copy.values["a"].sum() == 6


def test_tensors_are_not_predictions_of_instances() -> None:
    """AI Platform's JSON has one prediction for each instance."""
    for write in (encode_predictions, lambda batch: encode_bodies(batch, [1])):
        with pytest.raises(InvalidOutputs, match="not one for each instance"):
            write(tensors())


@pytest.mark.parametrize(
    ("rows", "finite", "but_missing"),
    [
        ([[1.0, -2.0]], True, True),
        ([[1, 2**62]], True, True),
        ([[MAX_FLOAT32, -MAX_FLOAT32]], True, True),
        ([[1e30, 1e200]], False, False),
        ([[np.nan, 1.0]], False, True),
        ([[np.nan, np.nan]], False, True),
        ([[np.nan, 1e39]], False, False),
        ([[np.inf, 1.0]], False, False),
        ([[np.nan, -np.inf]], False, False),
        ([[]], False, False),
    ],
)
def test_finite_means_in_float32_too(rows: Any, finite: bool, but_missing: bool) -> None:
    """Missing values aside, where they are allowed; integers always are."""
    assert is_finite_float32(np.array(rows)) is finite
    assert is_finite_float32(np.array(rows), allow_nan=True) is but_missing


def test_what_is_no_array_of_numbers_is_not() -> None:
    """Lists are left to the library."""
    assert not is_finite_float32([[1.0]])
