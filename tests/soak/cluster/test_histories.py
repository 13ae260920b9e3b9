"""The check of histories finds what was planted, and nothing else."""

from __future__ import annotations

import math
import random

import pytest

from tests.soak.cluster.histories import RegisterOperation, find_violation


def read(start: float, end: float, saw: str) -> RegisterOperation:
    return RegisterOperation(start, end, saw=saw)


def write(start: float, end: float, wrote: str, *, saw: str | None = None) -> RegisterOperation:
    return RegisterOperation(start, end, saw=saw, wrote=wrote)


def make_history(seed: int, count: int = 60) -> list[RegisterOperation]:
    """Operations of several clients on a register that does each at a moment of its own."""
    chance = random.Random(seed)
    value, found = "begin", []
    for number in range(count):
        moment = float(number)
        start, end = moment - chance.uniform(0.1, 3), moment + chance.uniform(0.1, 3)
        kind = chance.choice(("read", "write", "conditional"))
        if kind == "read":
            found.append(read(start, end, value))
            continue
        if chance.random() < 0.1:
            end = math.inf
        saw = value if kind == "conditional" else None
        if end < math.inf or chance.random() < 0.5:  # else it was never done
            value = str(number)
        found.append(write(start, end, str(number), saw=saw))
    chance.shuffle(found)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_a_history_that_happened_is_no_violation(seed: int) -> None:
    assert find_violation(make_history(seed), "begin") is None


@pytest.mark.parametrize(
    "operations",
    [
        pytest.param([write(0, 1, "a"), read(2, 3, "begin")], id="an acknowledged write is not seen"),
        pytest.param([write(0, 1, "a"), read(2, 3, "b")], id="nobody wrote what is read"),
        pytest.param(
            [write(0, 1, "a"), write(2, 3, "b"), read(4, 5, "b"), read(6, 7, "a")],
            id="an old value comes back",
        ),
        pytest.param(
            [write(0, 4, "a", saw="begin"), write(1, 5, "b", saw="begin")], id="two change the same value"
        ),
        pytest.param([read(0, 1, "a"), write(2, math.inf, "a")], id="a value is seen before it is written"),
        pytest.param(
            [write(0, math.inf, "a"), read(1, 2, "a"), read(3, 4, "begin")], id="what was seen once is undone"
        ),
        pytest.param(
            [write(0, math.inf, "a", saw="begin"), write(5, math.inf, "b", saw="a"), read(1, 2, "b")],
            id="an unanswered write is seen before it began",
        ),
    ],
)
def test_what_cannot_have_happened_is_found(operations: list[RegisterOperation]) -> None:
    assert find_violation(operations, "begin") is not None


@pytest.mark.parametrize(
    "operations",
    [
        pytest.param([write(0, 9, "a"), read(1, 2, "begin"), read(3, 4, "a")], id="during the write"),
        pytest.param([write(0, math.inf, "a"), read(50, 51, "a")], id="an unanswered write, much later"),
        pytest.param([write(0, math.inf, "a"), read(50, 51, "begin")], id="an unanswered write, never"),
        pytest.param(
            [write(0, math.inf, "a"), write(1, math.inf, "b", saw="a"), read(2, 3, "b")],
            id="unanswered writes, one upon the other",
        ),
    ],
)
def test_what_can_have_happened_is_none(operations: list[RegisterOperation]) -> None:
    assert find_violation(operations, "begin") is None


def test_an_update_that_is_lost_is_found_in_a_long_history() -> None:
    history = make_history(1, 500)
    assert find_violation(history, "begin") is None

    first = min((one for one in history if one.is_answered and one.wrote), key=lambda one: one.end)
    assert first.wrote is not None
    assert find_violation([*history, read(9000, 9001, first.wrote)], "begin") is not None
