from __future__ import annotations

import itertools
import random

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.tuning.test_decide import STUDY, make_trial
from tuning.optimal import list_optimal, sort_by_objective
from tuning.study import Goal, Measurement, Metric, Trial, TrialState

TWO = msgspec.structs.replace(STUDY, metrics=(Metric("accuracy"), Metric("size", Goal.MINIMIZE)))


def measured(number: int, accuracy: float, size: float) -> Trial:
    final = Measurement(values={"accuracy": accuracy, "size": size})
    return Trial(number=number, parameters={}, state=TrialState.COMPLETED, final=final)


def test_the_best_trial_is_the_optimal_one() -> None:
    trials = [
        make_trial(1, 0.5),
        make_trial(2, 0.1),
        make_trial(3),
        make_trial(4, failed="x"),
        make_trial(5, 0.1),
    ]

    assert [one.number for one in list_optimal(STUDY, trials)] == [2]
    assert [one.number for one in sort_by_objective(STUDY, trials)] == [2, 5, 1]


def test_nothing_is_optimal_before_a_trial_is_completed() -> None:
    assert list_optimal(STUDY, [make_trial(1), make_trial(2, failed="x")]) == []


def test_a_trial_without_all_metrics_is_not_optimal() -> None:
    partly = msgspec.structs.replace(measured(1, 1.0, 0.0), final=Measurement(values={"accuracy": 1.0}))

    assert list_optimal(TWO, [partly]) == []


def test_the_front_of_two_metrics() -> None:
    trials = [measured(1, 0.9, 9.0), measured(2, 0.5, 1.0), measured(3, 0.5, 2.0), measured(4, 0.9, 8.0)]

    assert [one.number for one in list_optimal(TWO, trials)] == [2, 4]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12), st.integers())
def test_the_front_is_what_nothing_is_better_than(values: list[tuple[int, int]], seed: int) -> None:
    """Whatever the order of the trials."""
    trials = [measured(number, *pair) for number, pair in enumerate(values, 1)]
    dominated = {
        other.number
        for (one, (a, b)), (other, (c, d)) in itertools.permutations(zip(trials, values, strict=True), 2)
        if a >= c and b <= d and (a, b) != (c, d)
    }
    random.Random(seed).shuffle(trials)

    front = {one.number for one in list_optimal(TWO, trials)}

    assert front == {one.number for one in trials} - dominated
