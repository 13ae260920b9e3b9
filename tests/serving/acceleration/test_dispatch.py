"""serving.acceleration.dispatch"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from serving.acceleration.candidates import Predict, UnsuitableCandidate
from serving.acceleration.dispatch import FastPathDispatcher


def doubled(rows: Any) -> Any:
    return rows[:, 0] * 2


class Way:
    """Answers, and notes the rows of its calls."""

    def __init__(self, predict: Predict = doubled) -> None:
        self.calls: list[int] = []
        self._predict = predict

    def __call__(self, rows: Any) -> Any:
        self.calls.append(len(rows))
        return self._predict(rows)


def rows(count: int) -> Any:
    return np.arange(float(count))[:, None]


def switch(plain: Predict, *ways: tuple[int, Predict], exact: bool = True) -> FastPathDispatcher:
    return FastPathDispatcher(plain, ways, exact=exact, library_spread={})


def asked(serving: FastPathDispatcher, count: int) -> list[float]:
    """The answers to that many rows."""
    answers: list[float] = np.asarray(serving(rows(count))).tolist()
    return answers


def raising(error: Exception) -> Callable[[Any], Any]:
    def predict(_: Any) -> Any:
        raise error

    return predict


def test_each_call_goes_the_way_of_its_range() -> None:
    plain, few, many = Way(), Way(), Way()
    serving = switch(plain, (1, few), (8, plain), (256, many))

    for count in (1, 3, 7, 8, 200, 255, 256, 1000):
        assert asked(serving, count) == doubled(rows(count)).tolist()

    assert few.calls == [1, 3, 7]
    assert plain.calls == [8, 200, 255]
    assert many.calls == [256, 1000]


def test_below_the_first_range_the_plain_path_serves() -> None:
    plain, many = Way(), Way()
    serving = switch(plain, (4, many))

    for count in (1, 3, 4):
        serving(rows(count))

    assert (plain.calls, many.calls) == ([1, 3], [4])


def test_one_call_is_kept_when_one_is_wanted_and_compared_later() -> None:
    """What is kept stays as it was, whatever becomes of the memory."""
    plain, fast = Way(), Way()
    samples: list[int] = []
    serving = switch(plain, (1, fast))
    serving.on_sample = lambda: samples.append(1)
    serving(rows(2))
    serving.request_sample()
    given = rows(3)
    answer = np.asarray(serving(given))
    serving(rows(4))
    given[:] = 7
    answer[:] = 7

    assert samples == [1]
    assert serving.compare_sample() == ""
    assert plain.calls == [3]
    assert serving.compare_sample() == ""  # it is compared once
    assert plain.calls == [3]


def test_a_difference_ends_all_faster_ways() -> None:
    plain, right, wrong = Way(), Way(), Way(lambda rows: doubled(rows) + 1)
    told: list[str] = []
    serving = switch(plain, (1, wrong), (4, right))
    serving.on_withdrawn = told.append
    serving.request_sample()
    serving(rows(2))

    assert "differs in some bit" in serving.compare_sample()
    assert len(told) == 1
    assert asked(serving, 2) == [0, 2]
    assert asked(serving, 8) == doubled(rows(8)).tolist()
    assert right.calls == []


def test_what_is_within_the_tolerance_is_no_difference() -> None:
    def off(rows: Any) -> Any:
        return doubled(rows) * (1 + 2e-16)

    for exact, ends in ((False, False), (True, True)):
        serving = switch(Way(), (1, Way(off)), exact=exact)
        serving.request_sample()
        serving(rows(5) + 0.7)

        assert bool(serving.compare_sample()) is ends


def test_a_way_that_raises_costs_no_request() -> None:
    plain = Way()
    told: list[str] = []
    serving = switch(plain, (1, raising(RuntimeError("no luck"))))
    serving.on_withdrawn = told.append

    assert asked(serving, 2) == [0, 2]
    assert told == ["it raised RuntimeError: no luck"]
    assert asked(serving, 3) == [0, 2, 4]
    assert len(told) == 1


@pytest.mark.parametrize("ways", [(), ((1, raising(RuntimeError("fast"))),)])
def test_the_errors_of_the_library_are_its_own(ways: Sequence[tuple[int, Predict]]) -> None:
    told: list[str] = []
    serving = switch(raising(ValueError("plain")), *ways)
    serving.on_withdrawn = told.append

    with pytest.raises(ValueError, match="plain"):
        serving(rows(1))
    assert told == []


def test_rows_that_a_way_leaves_to_the_library_end_nothing() -> None:
    plain = Way()
    told: list[str] = []
    serving = switch(plain, (1, Way(raising(UnsuitableCandidate("not these")))))
    serving.on_withdrawn = told.append

    assert asked(serving, 2) == [0, 2]
    assert told == []


def test_an_answer_to_what_the_library_refuses_is_a_difference() -> None:
    serving = switch(raising(ValueError("not these")), (1, Way()))
    serving.request_sample()
    serving(rows(2))

    assert serving.compare_sample() == "the library raises ValueError: not these"
