from __future__ import annotations

import math
import random

import numpy as np
import pytest
from scipy import optimize

from loadtests.tuning.functions import FUNCTIONS, ObjectiveFunction
from tuning.algorithms.encoding import SpaceEncoding
from tuning.algorithms.random_search import draw_rows
from tuning.space import ParameterKind, Point, Value, check_space

OF_NUMBERS = [
    function
    for function in FUNCTIONS.values()
    if all(one.kind is ParameterKind.DOUBLE for one in function.space.list_all())
]
# A point with the least value, of the functions that are more than numbers.
MINIMA: dict[str, Point] = {
    "integer": {"layers": 5, "width": 181, "batch": 48, "epochs": 37, "heads": 7},
    "categorical": {
        "optimizer": "adam",
        "activation": "relu",
        "norm": "batch",
        "rate": 0.7,
        "dropout": 0.25,
    },
    "conditional": {"model": "boosted", "rate": 10**-1.3, "depth": 6, "subsample": 0.8},
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_no_point_is_below_the_minimum(function: ObjectiveFunction) -> None:
    check_space(function.space)
    encoding = SpaceEncoding(function.space)
    for row in draw_rows(encoding, 0, 2048):
        assert function.compute_regret(encoding.decode(row)) > 0


@pytest.mark.parametrize("function", OF_NUMBERS, ids=lambda one: one.name)
def test_the_minimum_is_that_of_the_best_hill(function: ObjectiveFunction) -> None:
    encoding = SpaceEncoding(function.space)

    def compute(row: np.ndarray) -> float:
        return function.compute(encoding.decode(row))

    starts = sorted(draw_rows(encoding, 1, 1024), key=compute)[:8]
    bounds = [(0.0, 1.0)] * len(encoding.columns)
    found = min(optimize.minimize(compute, one, bounds=bounds).fun for one in starts)
    if function.name == "ten-dimensional":  # too many hills for eight starts
        found = function.compute({f"x{index}": 1.0 for index in range(10)})
    assert found == pytest.approx(function.minimum, abs=1e-5)


@pytest.mark.parametrize("name", MINIMA)
def test_the_minimum_is_where_it_should_be(name: str) -> None:
    """Of whole numbers, and of choices, every neighbour is worse."""
    function = FUNCTIONS[name]
    best = MINIMA[name]
    assert function.compute_regret(best) == pytest.approx(0.0, abs=1e-3)
    for parameter in function.space.list_active(best):
        others: list[Value] = list(parameter.values)
        if parameter.kind is ParameterKind.INTEGER:
            others = [int(best[parameter.name]) - 1, int(best[parameter.name]) + 1]
        for other in others:
            if other != best[parameter.name] and parameter.name != "model":
                assert function.compute_regret({**best, parameter.name: other}) > function.compute_regret(
                    best
                )


def test_noise_is_added_to_what_is_measured_alone() -> None:
    function = FUNCTIONS["noisy"]
    point = {"x0": 0.1, "x1": 0.2, "x2": 0.3}
    values = [function.measure(point, random.Random(seed)) for seed in range(400)]

    assert np.std(values) == pytest.approx(0.2, rel=0.2)
    assert math.isclose(np.mean(values), function.compute(point), abs_tol=0.05)
