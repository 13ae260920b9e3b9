"""serving.runtimes.output_equality"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from serving.runtimes import Runtime, output_equality
from serving.runtimes.instance_batch import Batch, count_rows
from serving.runtimes.output_equality import make_synthetic_batch

NAN = float("nan")
MIB = 1 << 20


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


def array(rows: int, width: int) -> Batch:
    return np.zeros((rows, width), np.uint8)


def columns(rows: int, width: int) -> Batch:
    return {"a": np.zeros((rows, width // 2), np.uint8), "b": np.zeros((rows, width // 2), np.uint8)}


def given(runtime: Runtime, most: int) -> int:
    rows = make_synthetic_batch(runtime, most)
    assert rows is not None
    return count_rows(rows)


def plain(rows: int, width: int) -> Batch:
    return [[0] * width] * rows


@pytest.mark.parametrize("form", [array, columns])
@pytest.mark.parametrize(
    ("width", "most", "rows"),
    [(8, 64, 64), (MIB // 2, 64, 8), (64 * MIB, 64, 2), (64 * MIB, 1, 1), (0, 64, 64)],
)
def test_large_rows_are_few(form: Any, width: int, most: int, rows: int) -> None:
    runtime = cast(Runtime, SimpleNamespace(make_synthetic_rows=lambda count: form(count, width)))

    assert given(runtime, most) == rows


def test_of_plain_rows_the_bytes_are_not_known() -> None:
    runtime = cast(Runtime, SimpleNamespace(make_synthetic_rows=lambda count: plain(count, 3)))

    assert given(runtime, 64) == 64


def test_there_may_be_none() -> None:
    assert (
        make_synthetic_batch(cast(Runtime, SimpleNamespace(make_synthetic_rows=lambda _: None)), 64) is None
    )
