from __future__ import annotations

import itertools
import math

import msgspec
import pytest

from serving.errors import InvalidArgument
from tuning.space import Parameter, ParameterKind, SearchSpace
from tuning.study import (
    MAX_MEASUREMENT_BYTES,
    MAX_MEASUREMENTS,
    Algorithm,
    Goal,
    Measurement,
    Metric,
    Study,
    Trial,
    add_measurement,
    check_study,
    keep_finite,
)

X = Parameter(name="x", kind=ParameterKind.DOUBLE, minimum=0.0, maximum=1.0)
STUDY = Study(uid="u", space=SearchSpace((X,)), metrics=(Metric("loss", Goal.MINIMIZE),))


def measure(step: int, seconds: float = 0.0, loss: float = 0.0) -> Measurement:
    return Measurement(step, seconds, {"loss": loss})


def test_records_read_back() -> None:
    trial = Trial(number=1, parameters={"x": 0.5, "n": 3, "kind": "a"}, measurements=(measure(1, 2.0, 3.0),))

    assert msgspec.json.decode(msgspec.json.encode(trial), type=Trial) == trial
    assert msgspec.json.decode(msgspec.json.encode(STUDY), type=Study) == STUDY


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"metrics": ()}, "at least one metric"),
        ({"metrics": (Metric(""),)}, "each a name"),
        ({"metrics": (Metric("a"), Metric("a"))}, "the same name"),
        ({"space": SearchSpace(())}, "at least one parameter"),
        ({"algorithm": Algorithm.GRID_SEARCH}, "make them DISCRETE"),
    ],
)
def test_an_invalid_study_is_refused(changes: dict[str, object], problem: str) -> None:
    check_study(STUDY)

    with pytest.raises(InvalidArgument, match=problem):
        check_study(msgspec.structs.replace(STUDY, **changes))


def test_measurements_are_in_order_whatever_the_order_of_arrival() -> None:
    trial = Trial(number=1, parameters={})
    for one in (measure(3), measure(1, 2.0), measure(1, 1.0), measure(3, loss=5.0)):
        trial = add_measurement(trial, one)

    assert trial.measurements == (measure(1, 1.0), measure(1, 2.0), measure(3, loss=5.0))


def test_long_curves_are_thinned_from_the_first_to_the_last() -> None:
    trial = Trial(number=1, parameters={})
    for step in range(1000):
        trial = add_measurement(trial, measure(step))
        assert len(trial.measurements) <= MAX_MEASUREMENTS

    steps = [one.step for one in trial.measurements]
    assert (steps[0], steps[-1]) == (0, 999)
    assert steps == sorted(steps)
    assert max(after - before for before, after in itertools.pairwise(steps)) <= 20


def test_numbers_that_are_none_are_left_out() -> None:
    assert keep_finite({"a": 1.0, "b": math.nan, "c": math.inf}) == {"a": 1.0}


def test_long_measurements_are_thinned_by_their_bytes() -> None:
    """The first and the last stay."""
    trial = Trial(number=1, parameters={})
    for step in range(100):
        values = {f"{name}{'x' * 1000}": 1.0 for name in range(20)}
        trial = add_measurement(trial, Measurement(step, 0.0, values))
        assert len(msgspec.json.encode(trial.measurements)) <= MAX_MEASUREMENT_BYTES

    assert [one.step for one in trial.measurements][:: len(trial.measurements) - 1] == [0, 99]
