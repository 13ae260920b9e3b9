from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import msgspec
import pytest

from tests.tuning.spaces import EVERYTHING, FINITE, KIND, LAYERS, RATE
from tuning.algorithms.suggestion import MAX_SECONDS, suggest_points
from tuning.messages import KnownTrial, SuggestionRequest
from tuning.space import (
    Parameter,
    ParameterKind,
    Point,
    Scale,
    SearchSpace,
    check_point,
    count_points,
    make_key,
)
from tuning.study import Algorithm, Goal, Metric, Study

X = Parameter(name="x", kind=ParameterKind.DOUBLE, minimum=0.0, maximum=1.0)
Y = msgspec.structs.replace(X, name="y")
LOSS = (Metric("loss", Goal.MINIMIZE),)
EVERY_ALGORITHM = pytest.mark.parametrize("algorithm", list(Algorithm))


def make_study(*parameters: Parameter, algorithm: Algorithm = Algorithm.GAUSSIAN_PROCESS_BANDIT) -> Study:
    return Study(uid="one", space=SearchSpace(parameters), metrics=LOSS, algorithm=algorithm)


def run_study(study: Study, count: int, measure: Callable[[Point], float | None]) -> list[KnownTrial]:
    """As many trials, one after the other; where nothing is measured they are infeasible."""
    trials: list[KnownTrial] = []
    for number in range(1, count + 1):
        answer = suggest_points(SuggestionRequest(study, tuple(trials), 1, number))
        if answer.exhausted:
            break
        point = answer.points[0]
        value = measure(point)
        objectives = () if value is None else (value,)
        trials.append(KnownTrial(number, point, objectives, infeasible=value is None))
    return trials


def measure_bowl(point: Point) -> float:
    return sum((float(value) - 0.3) ** 2 for value in point.values() if not isinstance(value, str))


@EVERY_ALGORITHM
def test_equal_requests_have_equal_answers(algorithm: Algorithm) -> None:
    """In any process, whatever was asked before; another study's are others."""
    parameters = FINITE.parameters if algorithm is Algorithm.GRID_SEARCH else EVERYTHING.parameters
    study = make_study(*parameters, algorithm=algorithm)
    trials = run_study(study, 25, measure_bowl)
    request = SuggestionRequest(study, (*trials[:-2], KnownTrial(24, trials[-2].parameters)), 3, 25)

    first = suggest_points(request)
    run_study(make_study(X, Y), 9, measure_bowl)
    again = suggest_points(msgspec.json.decode(msgspec.json.encode(request), type=SuggestionRequest))
    other = suggest_points(msgspec.structs.replace(request, study=msgspec.structs.replace(study, uid="two")))

    assert first == again
    assert (first == other) == (algorithm is Algorithm.GRID_SEARCH)


@pytest.mark.parametrize("algorithm", [Algorithm.GAUSSIAN_PROCESS_BANDIT, Algorithm.RANDOM_SEARCH])
def test_points_lie_within_a_space_of_all_kinds(algorithm: Algorithm) -> None:
    for trial in run_study(make_study(*EVERYTHING.parameters, algorithm=algorithm), 30, measure_bowl):
        check_point(EVERYTHING, trial.parameters)


@EVERY_ALGORITHM
def test_a_finite_space_is_used_up_without_a_repeat(algorithm: Algorithm) -> None:
    trials = run_study(make_study(*FINITE.parameters, algorithm=algorithm), 99, measure_bowl)

    assert len(trials) == count_points(FINITE)
    assert len({make_key(trial.parameters) for trial in trials}) == len(trials)


@EVERY_ALGORITHM
def test_fewer_points_than_asked_for_where_the_space_ends(algorithm: Algorithm) -> None:
    answer = suggest_points(SuggestionRequest(make_study(LAYERS, algorithm=algorithm), (), 5, 1))

    assert sorted(point["layers"] for point in answer.points) == [1, 2, 3]
    assert answer.exhausted


@pytest.mark.parametrize(
    ("parameter", "count"),
    [
        (Parameter(name="x", kind=ParameterKind.INTEGER, minimum=2**63 - 3, maximum=2**63 - 1), 3),
        (
            Parameter(
                name="x",
                kind=ParameterKind.DISCRETE,
                scale=Scale.LOG,
                values=(1.0, 1.0 + 1e-12, 1e300),
            ),
            3,
        ),
        (
            Parameter(
                name="x", kind=ParameterKind.DISCRETE, scale=Scale.REVERSE_LOG, values=(1e-300, 1.0, 1e300)
            ),
            3,
        ),
        (Parameter(name="x", kind=ParameterKind.DOUBLE, minimum=0.0, maximum=5e-324), 2),
    ],
)
@pytest.mark.parametrize("algorithm", [Algorithm.GAUSSIAN_PROCESS_BANDIT, Algorithm.RANDOM_SEARCH])
def test_a_space_of_few_floats_is_used_up(algorithm: Algorithm, parameter: Parameter, count: int) -> None:
    trials = run_study(make_study(parameter, algorithm=algorithm), 9, lambda _: 1.0)

    assert len(trials) == count
    assert len({make_key(trial.parameters) for trial in trials}) == count


@EVERY_ALGORITHM
def test_neighbours_in_a_wide_range_are_different_points(algorithm: Algorithm) -> None:
    wide = Parameter(name="x", kind=ParameterKind.INTEGER, maximum=2**60)
    study = make_study(wide, algorithm=algorithm)
    known = tuple(KnownTrial(number, {"x": number - 1}, (float(number),)) for number in range(1, 21))

    points = suggest_points(SuggestionRequest(study, known, 3, 21)).points

    assert len({make_key(point) for point in points} - {make_key(one.parameters) for one in known}) == 3
    if algorithm is Algorithm.GRID_SEARCH:
        assert points == ({"x": 20}, {"x": 21}, {"x": 22})


@EVERY_ALGORITHM
def test_points_found_in_time_are_answered(algorithm: Algorithm) -> None:
    """At least one, however long it takes; the space is not used up by that."""
    request = SuggestionRequest(make_study(LAYERS, KIND, algorithm=algorithm), (), 9, 1)
    begin = [0.0]

    some = suggest_points(request, itertools.count(0.0, MAX_SECONDS / 3).__next__)
    slow = suggest_points(request, itertools.chain(begin, itertools.repeat(MAX_SECONDS)).__next__)

    assert len(some.points) == 3
    assert slow.points == some.points[:1] == suggest_points(request).points[:1]
    assert not some.exhausted
    assert not slow.exhausted


def test_a_grid_goes_through_all_points_in_order() -> None:
    study = make_study(LAYERS, KIND, algorithm=Algorithm.GRID_SEARCH)

    points = suggest_points(SuggestionRequest(study, (), 4, 1)).points

    assert points == (
        {"layers": 1, "kind": "linear"},
        {"layers": 1, "kind": "forest", "trees": 10},
        {"layers": 1, "kind": "forest", "trees": 11},
        {"layers": 1, "kind": "forest", "trees": 12},
    )


def test_random_points_are_spread_evenly() -> None:
    study = make_study(X, Y, algorithm=Algorithm.RANDOM_SEARCH)

    points = [trial.parameters for trial in run_study(study, 64, measure_bowl)]

    cells = {(int(float(point["x"]) * 8), int(float(point["y"]) * 8)) for point in points}
    assert len(cells) == 64


def test_points_asked_for_together_are_apart() -> None:
    """Those that are not measured yet count as what is expected of them."""
    study = make_study(X, Y)
    trials = tuple(run_study(study, 6, measure_bowl))

    points = suggest_points(SuggestionRequest(study, trials, 4, 7)).points

    distances = [
        math.dist((float(one["x"]), float(one["y"])), (float(other["x"]), float(other["y"])))
        for index, one in enumerate(points)
        for other in points[:index]
    ]
    assert min(distances) > 1e-3


def test_a_minimum_is_found() -> None:
    best = min(run_study(make_study(X, Y), 25, measure_bowl), key=lambda trial: trial.objectives)

    assert best.objectives[0] < 1e-4


def test_infeasible_regions_are_left() -> None:
    """Nothing above 0.5 can be measured, where the slope leads."""
    study = make_study(X, Y)

    trials = run_study(study, 40, lambda point: None if float(point["x"]) > 0.5 else -float(point["x"]))

    assert sum(trial.infeasible for trial in trials[20:]) < 14
    assert min(trial.objectives[0] for trial in trials if trial.objectives) < -0.4


def test_a_study_of_failures_goes_on() -> None:
    assert len(run_study(make_study(X, KIND), 20, lambda _: None)) == 20


def test_equal_values_are_no_problem() -> None:
    assert len(run_study(make_study(X, RATE), 12, lambda _: 1.0)) == 12


def test_a_pareto_front_is_searched_along_its_length() -> None:
    study = msgspec.structs.replace(make_study(X, Y), metrics=(Metric("a"), Metric("b")))
    trials: list[KnownTrial] = []
    for number in range(1, 31):
        point = suggest_points(SuggestionRequest(study, tuple(trials), 1, number)).points[0]
        x, y = float(point["x"]), float(point["y"])
        trials.append(KnownTrial(number, point, (x - y**2, 1.0 - x**2 - y**2)))

    front = [float(one.parameters["x"]) for one in trials[10:] if float(one.parameters["y"]) < 0.1]

    assert len(front) >= 10
    assert max(front) - min(front) > 0.5
