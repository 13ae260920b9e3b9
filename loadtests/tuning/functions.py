"""Functions with a known minimum, over spaces of all kinds, for other environments too.

The first two are the field's usual ones; of the six others each has one thing that real tuning has.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tuning.space import Parameter, ParameterKind, Point, Scale, SearchSpace


@dataclass(frozen=True)
class ObjectiveFunction:
    """To be minimized. `noise` is the standard deviation of what is added to each value."""

    name: str
    space: SearchSpace
    compute: Callable[[Point], float]
    minimum: float
    noise: float = 0.0

    def compute_regret(self, point: Point) -> float:
        """How far its value, without noise, is above the minimum."""
        return self.compute(point) - self.minimum

    def measure(self, point: Point, chance: random.Random) -> float:
        return self.compute(point) + (chance.gauss(0.0, self.noise) if self.noise else 0.0)


def _number(point: Point, name: str) -> float:
    return float(point[name])


def _double(name: str, minimum: float, maximum: float, scale: Scale = Scale.LINEAR) -> Parameter:
    return Parameter(name=name, kind=ParameterKind.DOUBLE, scale=scale, minimum=minimum, maximum=maximum)


def _integer(name: str, minimum: int, maximum: int, scale: Scale = Scale.LINEAR) -> Parameter:
    return Parameter(name=name, kind=ParameterKind.INTEGER, scale=scale, minimum=minimum, maximum=maximum)


def _child(parameter: Parameter, value: str) -> Parameter:
    return Parameter(
        name=parameter.name,
        kind=parameter.kind,
        scale=parameter.scale,
        minimum=parameter.minimum,
        maximum=parameter.maximum,
        parent_values=(value,),
    )


# ---- the field's usual ones


def _compute_branin(point: Point) -> float:
    x, y = _number(point, "x"), _number(point, "y")
    bend = y - 5.1 / (4.0 * math.pi**2) * x**2 + 5.0 / math.pi * x - 6.0
    return bend**2 + 10.0 * (1.0 - 1.0 / (8.0 * math.pi)) * math.cos(x) + 10.0


_HARTMANN_WEIGHTS = (1.0, 1.2, 3.0, 3.2)
_HARTMANN6_SLOPES = (
    (10.0, 3.0, 17.0, 3.5, 1.7, 8.0),
    (0.05, 10.0, 17.0, 0.1, 8.0, 14.0),
    (3.0, 3.5, 1.7, 10.0, 17.0, 8.0),
    (17.0, 8.0, 0.05, 10.0, 0.1, 14.0),
)
_HARTMANN6_CENTERS = (
    (0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886),
    (0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991),
    (0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650),
    (0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381),
)
_HARTMANN3_SLOPES = ((3.0, 10.0, 30.0), (0.1, 10.0, 35.0), (3.0, 10.0, 30.0), (0.1, 10.0, 35.0))
_HARTMANN3_CENTERS = (
    (0.3689, 0.1170, 0.2673),
    (0.4699, 0.4387, 0.7470),
    (0.1091, 0.8732, 0.5547),
    (0.0381, 0.5743, 0.8828),
)


def _compute_hartmann(
    point: Point, slopes: tuple[tuple[float, ...], ...], centers: tuple[tuple[float, ...], ...]
) -> float:
    values = [_number(point, f"x{index}") for index in range(len(slopes[0]))]
    return -sum(
        weight * math.exp(-sum(a * (x - p) ** 2 for a, x, p in zip(slope, values, center, strict=True)))
        for weight, slope, center in zip(_HARTMANN_WEIGHTS, slopes, centers, strict=True)
    )


# ---- one thing each


def _compute_log_scaled(point: Point) -> float:
    """A narrow valley between rate and decay, with ripples, best for a momentum near 1."""
    rate = math.log10(_number(point, "rate")) + 2.4
    decay = math.log10(_number(point, "decay")) + 5.0
    momentum = math.log10(1.001 - _number(point, "momentum")) + 1.7
    valley = rate**2 + 2.0 * (decay + 0.8 * rate) ** 2 + (momentum - 0.3 * rate) ** 2
    return valley + 0.3 * (1.0 - math.cos(3.0 * rate)) + 0.3 * (1.0 - math.cos(3.0 * momentum))


def _compute_integers(point: Point) -> float:
    """Layers, width and others of a network that is best at neither end of its ranges."""
    layers, width = _number(point, "layers"), math.log2(_number(point, "width"))
    batch, epochs, heads = (
        math.log2(_number(point, "batch")),
        _number(point, "epochs"),
        _number(point, "heads"),
    )
    size = 0.35 * (layers - 5.0) + (width - math.log2(181.0))
    return (
        size**2
        + 0.2 * (layers - 5.0) ** 2
        + 0.5 * (batch - math.log2(48.0) - 0.3 * (width - math.log2(181.0))) ** 2
        + 0.002 * (epochs - 37.0) ** 2
        + 0.1 * abs(heads - 7.0)
    )


_OPTIMIZER_COSTS = {"sgd": 0.9, "momentum": 0.5, "adam": 0.1, "rmsprop": 0.4, "adagrad": 0.7, "lamb": 0.0}
_ACTIVATION_COSTS = {"relu": 0.2, "tanh": 0.5, "gelu": 0.0, "elu": 0.3, "sigmoid": 0.9}
_NORM_COSTS = {"none": 0.5, "batch": 0.0, "layer": 0.2, "group": 0.4}
_PAIR_COSTS = {("lamb", "gelu"): 0.4, ("lamb", "batch"): 0.3, ("gelu", "batch"): 0.3, ("adam", "relu"): -0.1}


def _compute_categorical(point: Point) -> float:
    """Three choices of which the best alone are not the best together, and two numbers."""
    choices = str(point["optimizer"]), str(point["activation"]), str(point["norm"])
    optimizer, activation, norm = choices
    cost = _OPTIMIZER_COSTS[optimizer] + _ACTIVATION_COSTS[activation] + _NORM_COSTS[norm]
    pairs = ((optimizer, activation), (optimizer, norm), (activation, norm))
    cost += sum(_PAIR_COSTS.get(pair, 0.0) for pair in pairs)
    best_rate = 0.7 if optimizer in ("adam", "lamb") else 0.3
    return cost + 2.0 * (_number(point, "rate") - best_rate) ** 2 + (_number(point, "dropout") - 0.25) ** 2


def _compute_conditional(point: Point) -> float:
    """Three models with parameters of their own; the second best is easier to tune than the best."""
    match point["model"]:
        case "linear":
            return 0.6 + 0.05 * (math.log10(_number(point, "l2")) + 3.0) ** 2
        case "forest":
            trees, depth = math.log10(_number(point, "trees")), _number(point, "depth")
            return 0.25 + 0.3 * (trees - 2.5) ** 2 + 0.004 * (depth - 14.0) ** 2
        case _:
            rate = math.log10(_number(point, "rate")) + 1.3
            depth, share = _number(point, "depth") - 6.0, _number(point, "subsample") - 0.8
            return 0.6 * rate**2 + 0.03 * (depth + rate) ** 2 + 2.0 * share**2 + 0.2 * abs(rate * share)


def _compute_levy(point: Point) -> float:
    waves = [1.0 + (_number(point, f"x{index}") - 1.0) / 4.0 for index in range(10)]
    middle = sum((w - 1.0) ** 2 * (1.0 + 10.0 * math.sin(math.pi * w + 1.0) ** 2) for w in waves[:-1])
    end = (waves[-1] - 1.0) ** 2 * (1.0 + math.sin(2.0 * math.pi * waves[-1]) ** 2)
    return math.sin(math.pi * waves[0]) ** 2 + middle + end


def _choice(name: str, costs: Mapping[str, float]) -> Parameter:
    return Parameter(name=name, kind=ParameterKind.CATEGORICAL, values=tuple(costs))


_MODEL = Parameter(
    name="model",
    kind=ParameterKind.CATEGORICAL,
    values=("linear", "forest", "boosted"),
    children=(
        _child(_double("l2", 1e-8, 1e2, Scale.LOG), "linear"),
        _child(_integer("trees", 10, 2000, Scale.LOG), "forest"),
        _child(_integer("depth", 1, 30), "forest"),
        _child(_double("rate", 1e-4, 1.0, Scale.LOG), "boosted"),
        _child(_integer("depth", 1, 15), "boosted"),
        _child(_double("subsample", 0.1, 1.0), "boosted"),
    ),
)

BRANIN = ObjectiveFunction(
    "branin",
    SearchSpace((_double("x", -5.0, 10.0), _double("y", 0.0, 15.0))),
    _compute_branin,
    0.39788735772973816,
)
HARTMANN6 = ObjectiveFunction(
    "hartmann6",
    SearchSpace(tuple(_double(f"x{index}", 0.0, 1.0) for index in range(6))),
    lambda point: _compute_hartmann(point, _HARTMANN6_SLOPES, _HARTMANN6_CENTERS),
    -3.322368011415515,
)
LOG_SCALED = ObjectiveFunction(
    "log-scaled",
    SearchSpace(
        (
            _double("rate", 1e-6, 1.0, Scale.LOG),
            _double("decay", 1e-9, 1e-1, Scale.LOG),
            _double("momentum", 0.001, 0.9999, Scale.REVERSE_LOG),
        )
    ),
    _compute_log_scaled,
    0.0,
)
INTEGERS = ObjectiveFunction(
    "integer",
    SearchSpace(
        (
            _integer("layers", 1, 12),
            _integer("width", 8, 2048, Scale.LOG),
            _integer("batch", 4, 1024, Scale.LOG),
            _integer("epochs", 1, 100),
            _integer("heads", 1, 16),
        )
    ),
    _compute_integers,
    0.0,
)
CATEGORICAL = ObjectiveFunction(
    "categorical",
    SearchSpace(
        (
            _choice("optimizer", _OPTIMIZER_COSTS),
            _choice("activation", _ACTIVATION_COSTS),
            _choice("norm", _NORM_COSTS),
            _double("rate", 0.0, 1.0),
            _double("dropout", 0.0, 0.9),
        )
    ),
    _compute_categorical,
    0.2,
)
CONDITIONAL = ObjectiveFunction("conditional", SearchSpace((_MODEL,)), _compute_conditional, 0.0)
NOISY = ObjectiveFunction(
    "noisy",
    SearchSpace(tuple(_double(f"x{index}", 0.0, 1.0) for index in range(3))),
    lambda point: _compute_hartmann(point, _HARTMANN3_SLOPES, _HARTMANN3_CENTERS),
    -3.8627797869493365,
    noise=0.2,
)
TEN_DIMENSIONAL = ObjectiveFunction(
    "ten-dimensional",
    SearchSpace(tuple(_double(f"x{index}", -10.0, 10.0) for index in range(10))),
    _compute_levy,
    0.0,
)

FUNCTIONS: Mapping[str, ObjectiveFunction] = {
    function.name: function
    for function in (
        BRANIN,
        HARTMANN6,
        LOG_SCALED,
        INTEGERS,
        CATEGORICAL,
        CONDITIONAL,
        NOISY,
        TEN_DIMENSIONAL,
    )
}
