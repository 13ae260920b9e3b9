"""serving.runtimes.output_equality"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from serving.runtimes import output_equality
from serving.runtimes.instance_batch import Batch

NAN = float("nan")


def exactly(one: Batch, other: Batch) -> str:
    return output_equality.describe_difference(one, other, output_equality.zero_tolerance(one))


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ([1.0, NAN], [1.0, NAN], True),
        ([0.0], [-0.0], False),
        ([1.0], [1.0 + 2**-52], False),
        (["a"], ["a"], True),
        ([1], [1.0], False),
        ([[1.0]], [1.0], False),
        ([1.0, 2.0], [1.0], False),
        ([True], [1], False),
    ],
)
def test_what_is_exact_is_equal_to_the_bit(one: Any, other: Any, equal: bool) -> None:
    assert (exactly(np.array(one), np.array(other)) == "") is equal


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("a", "a", True),
        (1, True, False),
        (1, 1.0, False),
        (NAN, NAN, True),
        (None, None, True),
        ("a", "b", False),
    ],
)
def test_objects_are_equal_if_their_types_are(one: Any, other: Any, equal: bool) -> None:
    assert (exactly(np.array([one, "x"], object), np.array([other, "x"], object)) == "") is equal


def test_the_form_counts() -> None:
    assert "list, not ndarray" in exactly(np.array([1.0]), [1.0])
    assert exactly([1.0, 2.0], [1.0, 2.0]) == ""
    assert "outputs" in exactly({"a": np.ones(1)}, {"b": np.ones(1)})
    assert "output b" in exactly({"a": np.ones(1), "b": np.ones(1)}, {"a": np.ones(1), "b": np.zeros(1)})
    assert "is float32, not float64" in exactly(np.ones(1), np.ones(1, np.float32))


def test_elsewhere_the_library_s_own_differences_are_allowed() -> None:
    """Or four units in the last place, if these are more."""
    answers = np.array([1.0, 1.5])
    own = output_equality.measure_spread(answers, [answers + 1e-9])
    allowed = output_equality.compute_tolerance(answers, own, exact=False)
    strict = output_equality.compute_tolerance(answers, {}, exact=False)
    unit = np.spacing(1.5)

    assert output_equality.describe_difference(answers, answers + 0.9e-9, allowed) == ""
    assert "for row 0" in output_equality.describe_difference(answers, answers + 2e-9, allowed)
    assert output_equality.describe_difference(answers, answers + 4 * unit, strict) == ""
    assert output_equality.describe_difference(answers, answers + 6 * unit, strict)
    assert output_equality.compute_tolerance(answers, own, exact=True) == {"": 0.0}


def test_labels_beside_numbers_must_be_identical() -> None:
    answers = {"label": np.array([1, 2]), "score": np.array([0.5, 0.5])}
    allowed = output_equality.compute_tolerance(
        answers, output_equality.measure_spread(answers, [answers]), exact=False
    )
    other = {"label": np.array([1, 3]), "score": np.array([0.5, 0.5])}

    assert "output label" in output_equality.describe_difference(answers, other, allowed)
