from __future__ import annotations

import pytest

from loadtests.bench.load_clients.answers import (
    TOLERANCE,
    check_answers,
    check_during,
    find_error,
    read_expected,
)
from loadtests.bench.workloads import BenchFiles
from tests.loadtests.bench.conftest import IRIS
from tests.loadtests.bench.stub import answering


@pytest.mark.parametrize(
    "body",
    [
        b'{"predictions": [1.0, 2.0]}',
        b'{"predictions": [[1, 2]]}',
        b'{"predictions": [{"probabilities": [1.0, 2.0]}]}',
        b'{"predictions": [1.0, %r]}' % (2.0 * (1 + TOLERANCE / 2)),
    ],
)
def test_right_answers(body: bytes) -> None:
    """Numbers count, in whatever lists and objects they stand."""
    assert find_error(200, body, [1.0, 2.0]) == ""


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (500, b"oops", "status 500: b'oops'"),
        (200, b'{"predictions": [1.0]}', "1 numbers instead of 2"),
        (200, b'{"predictions": [1.0, 2.1]}', "2.1 instead of 2.0"),
        (200, b'{"error": "no"}', "not a prediction"),
        (200, b'{"predictions": [{"a": 1, "b": 2}]}', "not a prediction"),
        (200, b"<html>", "not a prediction"),
    ],
)
def test_wrong_answers(status: int, body: bytes, said: str) -> None:
    """What is said tells what to look for."""
    assert find_error(status, body, [1.0, 2.0]).startswith(said)


def test_answers_are_checked_before_and_during_a_load(material: BenchFiles) -> None:
    """A server that answers the same to everyone is found out, before the load and beside it."""
    expect = read_expected(material.bodies_file(IRIS), material.answers_file(IRIS))
    with answering(b'{"predictions":[0]}') as url:
        before = check_answers(url, expect)
        with check_during(url, expect) as watch:
            pass

    assert before.endswith("0.0 instead of 1.0") or before.endswith("0.0 instead of 2.0")
    assert watch.count >= 1
