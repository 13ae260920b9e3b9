"""Whole tensors among the batches that have rows."""

from __future__ import annotations

import numpy as np
import pytest

from serving.errors import InvalidOutputs
from serving.runtimes.instance_batch import (
    WholeTensors,
    concatenate_batches,
    concatenation_key,
    copy_batch,
    count_bytes,
    count_rows,
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
