from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import pytest

from tuning.space import Parameter, ParameterKind, SearchSpace
from tuning.stopping import Curve, EarlyStopping, forecast, should_stop
from tuning.study import Measurement, Metric, StoppingRule, Study, Trial, TrialState

SPACE = SearchSpace((Parameter(name="x", kind=ParameterKind.DOUBLE, minimum=0.0, maximum=1.0),))
MEDIAN = Study(uid="u", space=SPACE, metrics=(Metric("accuracy"),), stopping_rule=StoppingRule.MEDIAN)
DECAY = msgspec.structs.replace(MEDIAN, stopping_rule=StoppingRule.DECAY_CURVE)


def make_trial(number: int, curve: Sequence[float], *, ended: bool = True, every: float = 10.0) -> Trial:
    """Reports after each step, which takes `every` seconds."""
    measurements = tuple(
        Measurement(step, step * every, {"accuracy": value}) for step, value in enumerate(curve, 1)
    )
    return Trial(
        number=number,
        parameters={"x": 0.5},
        state=TrialState.COMPLETED if ended else TrialState.ACTIVE,
        measurements=measurements,
        final=measurements[-1] if ended else None,
    )


def rise(end: float, steps: int = 30, speed: float = 0.7) -> list[float]:
    return [end - 0.5 * step**-speed for step in range(1, steps + 1)]


def test_a_study_without_a_rule_stops_nothing() -> None:
    study = msgspec.structs.replace(MEDIAN, stopping_rule=StoppingRule.NONE)

    assert not should_stop(study, [make_trial(n, [0.9, 0.9]) for n in range(8)], make_trial(9, [0.0, 0.0]))


def test_several_metrics_have_no_early_stopping() -> None:
    study = msgspec.structs.replace(MEDIAN, metrics=(Metric("accuracy"), Metric("size")))

    assert not should_stop(study, [make_trial(n, [0.9, 0.9]) for n in range(8)], make_trial(9, [0.0, 0.0]))


@pytest.mark.parametrize(
    ("curve", "stops"),
    [
        ([0.1], False),  # the first report says too little
        ([0.1, 0.5], True),  # the median of 0.5, 0.75 and 1.0 is more
        ([0.1, 0.75], False),  # as good as the median
        ([0.9, 0.0], False),  # it was better once
    ],
)
def test_median_rule(curve: list[float], stops: bool) -> None:
    completed = [make_trial(number, [0.25 * number, 0.25 * number + 0.5, 9.0]) for number in (1, 2, 3)]

    assert should_stop(MEDIAN, completed, make_trial(9, curve, ended=False)) == stops


def test_median_rule_needs_two_completed_trials() -> None:
    completed = [make_trial(1, [0.9, 0.9]), make_trial(2, [0.9, 0.9], ended=False)]

    assert not should_stop(MEDIAN, completed, make_trial(9, [0.1, 0.1], ended=False))


@pytest.mark.parametrize("study", [MEDIAN, DECAY], ids=["median", "decay curve"])
def test_curves_that_are_read_once_say_the_same(study: Study) -> None:
    """While trials report and are completed, one after the other."""
    chance = random.Random(3)
    stopping, completed = EarlyStopping(study), list[Trial]()
    answers = []
    for number in range(1, 25):
        curve = rise(chance.uniform(0.5, 1.0), speed=chance.uniform(0.3, 1.0))
        for steps in (1, 2, 10, 20):
            trial = make_trial(number, curve[:steps], ended=False)
            answers.append(stopping.should_stop(trial))
            assert answers[-1] == stopping.should_stop(trial) == should_stop(study, completed, trial)
        completed.append(make_trial(number, curve))
        stopping.add(completed[-1])

    assert {True, False} == set(answers)


def test_elapsed_time_instead_of_steps() -> None:
    """Slow trials are compared with what others had reached after that time."""
    study = msgspec.structs.replace(MEDIAN, use_elapsed_time=True)
    completed = [make_trial(number, [0.2, 0.4, 0.8, 1.0]) for number in (1, 2, 3)]
    slow = make_trial(9, [0.2, 0.4], ended=False, every=20.0)

    assert not should_stop(MEDIAN, completed, slow)
    assert should_stop(study, completed, slow)


@pytest.mark.parametrize("speed", [0.25, 0.5, 1.0, 2.0])
def test_a_forecast_goes_on_with_the_curve(speed: float) -> None:
    curve = rise(0.9, 30, speed)

    assert forecast(Curve(range(1, 11), curve[:10]), 30) == pytest.approx(curve[-1], abs=1e-6)


def test_a_forecast_of_equal_values_is_that_value() -> None:
    assert forecast(Curve([3, 3], [0.5, 0.5]), 100) == 0.5


def test_decay_curves_stop_the_hopeless_and_leave_the_promising() -> None:
    chance = random.Random(1)
    completed = [
        make_trial(number, [value + chance.gauss(0.0, 0.003) for value in rise(0.8 + 0.01 * number)])
        for number in range(1, 9)
    ]

    assert should_stop(DECAY, completed, make_trial(20, rise(0.6, 8), ended=False))
    assert not should_stop(DECAY, completed, make_trial(20, rise(0.95, 8), ended=False))
    assert not should_stop(DECAY, completed, make_trial(20, rise(0.6, 1), ended=False))
    assert not should_stop(DECAY, completed[:4], make_trial(20, rise(0.6, 8), ended=False))


def test_a_late_bloomer_is_not_stopped_where_others_bloomed_late_too() -> None:
    """What forecasts were worth is learnt from the completed trials."""

    def jump(end: float, steps: int) -> list[float]:
        return [0.1 if step < 15 else end for step in range(steps)]

    completed = [make_trial(number, jump(0.5 + 0.05 * number, 30)) for number in range(1, 9)]

    assert not should_stop(DECAY, completed, make_trial(20, jump(0.9, 10), ended=False))


@pytest.mark.parametrize("study", [MEDIAN, DECAY], ids=["median", "decay"])
@pytest.mark.parametrize("unit", [1e200, 1.7e308, 5e-324])
def test_scores_near_the_bounds_of_floats_are_compared(study: Study, unit: float) -> None:
    completed = [
        make_trial(number, [unit * (-1) ** (number + step) for step in range(8)]) for number in range(1, 9)
    ]

    for sign in (1.0, -1.0):
        should_stop(study, completed, make_trial(20, [sign * unit] * 3, ended=False))


@pytest.mark.parametrize("unit", [1e200, 1.7e308])
def test_the_unit_of_a_score_does_not_matter(unit: float) -> None:
    """Also where its square is no finite float."""
    completed = [
        make_trial(number, [unit * value for value in rise(0.8 + 0.01 * number)]) for number in range(1, 9)
    ]

    for study in (MEDIAN, DECAY):
        hopeless, promising = ([unit * value for value in rise(end, 8)] for end in (0.3, 0.95))
        assert should_stop(study, completed, make_trial(20, hopeless, ended=False))
        assert not should_stop(study, completed, make_trial(20, promising, ended=False))
