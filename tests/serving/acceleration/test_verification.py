"""serving.acceleration.verification"""

from __future__ import annotations

import math

import numpy as np
import pytest

from serving.acceleration.verification import TIMED_SIZES, SizeTiming, VerificationResult, verify_candidates
from serving.runtimes.instance_batch import Batch
from tests.serving.acceleration.models import GOOD, REFUSING, WRONG, Fake, offer, quick, reusing
from tests.serving.runtimes.proving import prove


@pytest.mark.parametrize("name", WRONG)
def test_what_differs_is_refused(name: str) -> None:
    """A candidate that is wrong in one way is refused, with a reason; the good one beside it is proven."""
    found = prove(Fake([offer(name, WRONG[name]), GOOD]))

    assert found.refused[name]
    assert list(found.candidates) == ["good"]


def test_the_reason_says_what_differs_and_where() -> None:
    found = prove(Fake([offer("one bit", WRONG["one bit"]), offer("raising", WRONG["raising"]), REFUSING]))

    assert "differs in some bit" in found.refused["one bit"]
    assert "for row 0" in found.refused["one bit"]
    assert found.refused["raising"] == "it raised RuntimeError: no luck"
    assert found.refused["refusing"] == "an unknown step: Foo"


def test_answers_that_the_next_call_overwrites_are_refused() -> None:
    assert "reusing" in prove(Fake([reusing()])).refused


def test_rows_of_recorded_requests_are_probes_too() -> None:
    """A difference that only they show is found; requests with parameters go the plain way anyway."""
    recorded = np.array([[7.0, 1.0, 1.0]])

    def predict(rows: np.ndarray) -> Batch:
        return np.where(rows[:, 0] == 7.0, 0.0, quick(rows))

    assert prove(Fake([offer("unlucky", predict)])).candidates
    assert prove(Fake([offer("unlucky", predict)], recorded=[(recorded, {"signature": "x"})])).candidates
    assert prove(Fake([offer("unlucky", predict)], recorded=[(recorded, {})])).refused


def test_a_model_that_is_not_exact_may_differ_by_four_units_in_the_last_place() -> None:
    """Of its largest answer among the same probes, and by no more."""

    def off_by(ulps: int) -> dict[str, str]:
        def predict(rows: np.ndarray) -> Batch:
            answers = quick(rows)
            return np.asarray(answers + ulps * np.spacing(np.abs(answers)))

        return dict(prove(Fake([offer("off", predict)], exact=False)).refused)

    assert off_by(1) == {}
    assert "differs by more than" in off_by(1000)["off"]
    assert prove(Fake([offer("one bit", WRONG["one bit"])], exact=True)).refused


def test_all_sizes_are_timed_within_the_budget_and_three_without_one() -> None:
    rows = [timing.rows for timing in verify_candidates(Fake([GOOD]), budget=60.0).timings]
    hasty = [timing.rows for timing in verify_candidates(Fake([GOOD]), budget=0.0).timings]

    assert rows == sorted(TIMED_SIZES)
    assert hasty == [1, 16, 256]


def test_what_is_faster_is_measured_so() -> None:
    timing = verify_candidates(Fake([GOOD]), budget=0.0).timings[0]

    assert timing.fastest == "good"
    assert timing.strategies["good"] < timing.reference / 5


@pytest.mark.parametrize(
    ("ways", "fastest"),
    [
        ({}, ""),
        ({"one": 0.95}, ""),  # not worth it
        ({"one": 0.9}, "one"),
        ({"one": 0.5, "two": 0.4}, "two"),
        ({"one": math.inf}, ""),
    ],
)
def test_a_way_is_chosen_if_it_gains_a_tenth(ways: dict[str, float], fastest: str) -> None:
    assert SizeTiming(1, 1.0, ways).fastest == fastest


def test_one_way_serves_where_another_is_hardly_faster() -> None:
    """Not where the difference matters, nor where it would take longer than the plain path."""
    timings = (
        SizeTiming(1, 10.0, {"one": 1.0, "two": 1.2}),
        SizeTiming(2, 10.0, {"one": 1.2, "two": 1.0}),
        SizeTiming(4, 10.0, {"one": 1.3, "two": 1.0}),
        SizeTiming(8, 10.0, {"one": 1.0, "two": 5.0}),
        SizeTiming(16, 10.0, {"one": 1.0, "two": 5.0}),
        SizeTiming(32, 1.0, {"one": 0.95, "two": 0.85}),
        SizeTiming(64, 1.0, {"one": 0.95, "two": 0.95}),
        SizeTiming(128, 10.0, {"one": 1.0, "two": 5.0}),
    )
    ways = [way for _, way in VerificationResult((), timings, {}).choose_strategies()]

    assert ways == ["one", "one", "two", "one", "one", "two", "", "one"]


def test_nothing_is_timed_where_nothing_is_proven() -> None:
    findings = verify_candidates(Fake([REFUSING]))

    assert findings.timings == ()


def test_what_was_left_out_is_refused_for_the_reason_given() -> None:
    findings = verify_candidates(Fake([GOOD]), excluded={"good": "it crashed"})

    assert [(one.built, one.refused) for one in findings.proofs] == [(None, "it crashed")]
