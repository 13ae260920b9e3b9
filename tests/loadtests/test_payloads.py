from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtests.payloads import find_fault, iter_bodies, read_rows


def sent(folder: Path, instances: list[Any], size: int, count: int) -> list[list[Any]]:
    """The instances of the first `count` requests."""
    file = folder / "rows.jsonl"
    file.write_text("".join(f"{json.dumps(one)}\n" for one in instances))
    return [json.loads(body)["instances"] for body in islice(iter_bodies(read_rows(file), size), count)]


def test_requests_carry_the_rows_in_turn(tmp_path: Path) -> None:
    """First as they stand in the file, over the borders of requests."""
    assert sent(tmp_path, [[1.5], [2.5], {"x": 3}, "4.5"], 3, 1) == [[[1.5], [2.5], {"x": 3}]]


@pytest.mark.parametrize("instance", [1.5, [3, 1.5], [0.0], [[[-2e-7]]], {"a": "1.0", "b": [1.5, 2.5]}])
def test_no_two_requests_are_alike(tmp_path: Path, instance: Any) -> None:
    """A row comes again only a little changed, yet so that it differs in 32 bits too."""
    found = sent(tmp_path, [instance], 1, 300)
    texts = {json.dumps(one) for one in found}
    numbers = {np.float32(number) for one in found for number in numbers_of(one)[:1]}

    assert found[0] == [instance]
    assert len(texts) == len(numbers) == 300
    assert numbers_of(found[-1]) == pytest.approx(numbers_of(instance), rel=1e-3, abs=1e-3)


def numbers_of(value: Any) -> list[float]:
    """The floats in a value, in order."""
    if isinstance(value, list | dict):
        items = value.values() if isinstance(value, dict) else value
        return [number for item in items for number in numbers_of(item)]
    return [value] if isinstance(value, float) else []


def test_rows_without_a_float_stay_as_they_are(tmp_path: Path) -> None:
    """An integer may be a category, and a text anything."""
    assert sent(tmp_path, [[1, "2.5"]], 1, 3) == [[[1, "2.5"]]] * 3


@pytest.mark.parametrize("text", ["", "\n \n", "[1,\n"])
def test_a_file_without_instances_is_refused(tmp_path: Path, text: str) -> None:
    """Before any load starts."""
    (tmp_path / "rows.jsonl").write_text(text)

    with pytest.raises(ValueError, match=r"no instances|Expecting"):
        read_rows(tmp_path / "rows.jsonl")


@pytest.mark.parametrize(
    ("status", "content", "wrong"),
    [
        (200, b'{"predictions": [0, 1]}', ""),
        (503, b'{"error":\n  {}}', 'status 503: {"error": {}}'),
        (200, b'{"predictions": [0]}', 'not 2 predictions: {"predictions": [0]}'),
        (200, b'{"predictions": {"0": 1, "1": 2}}', 'not 2 predictions: {"predictions": {"0": 1, "1": 2}}'),
        (200, b"[0, 1]", "not 2 predictions: [0, 1]"),
        (200, b"\xff", "no JSON: \ufffd"),
    ],
)
def test_an_answer_is_right_or_told_in_one_line(status: int, content: bytes, wrong: str) -> None:
    """A right status is not enough: there must be a prediction for each instance."""
    assert find_fault(status, content, 2) == wrong
