"""serving.runtimes.synthetic_rows"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from serving.runtimes import Runtime
from serving.runtimes.instance_batch import Batch, count_rows
from serving.runtimes.synthetic_rows import make_bounded_rows

MIB = 1 << 20


def array(rows: int, width: int) -> Batch:
    return np.zeros((rows, width), np.uint8)


def columns(rows: int, width: int) -> Batch:
    return {"a": np.zeros((rows, width // 2), np.uint8), "b": np.zeros((rows, width // 2), np.uint8)}


def given(runtime: Runtime, most: int) -> int:
    rows = make_bounded_rows(runtime, most)
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
    assert make_bounded_rows(cast(Runtime, SimpleNamespace(make_synthetic_rows=lambda _: None)), 64) is None
