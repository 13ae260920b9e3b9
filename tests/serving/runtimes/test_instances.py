"""Whole tensors among the batches that have rows."""

from __future__ import annotations

import numpy as np
import pytest

from serving.errors import InvalidOutputs
from serving.runtimes.codec import encode, encode_each
from serving.runtimes.instances import Tensors, concatenate, copied, count, signature, size, split, take


def tensors() -> Tensors:
    return Tensors({"a": np.ones((2, 3), np.float32), "b": np.array(1)})


def test_tensors_are_one_piece() -> None:
    """They count as one, and are cut nowhere."""
    whole = tensors()

    assert (count(whole), size(whole)) == (1, 2 * 3 * 4 + 8)
    assert concatenate([whole]) is whole
    assert list(split(whole, [1])) == [whole]
    assert take(whole, slice(0, 64)) is whole


def test_tensors_share_a_call_with_no_others() -> None:
    """Not even with equal ones."""
    whole = tensors()

    assert signature(whole) == signature(whole) != signature(tensors())


def test_a_copy_has_memory_of_its_own() -> None:
    whole = tensors()
    copy = copied(whole)

    assert isinstance(copy, Tensors)
    whole.values["a"][:] = 2
    assert copy.values["a"].sum() == 6


def test_tensors_are_not_predictions_of_instances() -> None:
    """AI Platform's JSON has one prediction for each instance."""
    for write in (encode, lambda batch: encode_each(batch, [1])):
        with pytest.raises(InvalidOutputs, match="not one for each instance"):
            write(tensors())
