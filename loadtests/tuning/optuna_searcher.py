"""Optuna's default sampler, in an environment of its own: `python -m loadtests.tuning.optuna_searcher`.

Reads SearchOrders, one per line, and writes a SearchResult for each.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import msgspec
import optuna

from loadtests.tuning.functions import ObjectiveFunction
from loadtests.tuning.searches import SearchOrder, run_search
from tuning.space import Parameter, ParameterKind, Point, Scale, Value


class OptunaSearcher:
    def __init__(self, function: ObjectiveFunction, seed: int) -> None:
        self._space = function.space
        self._study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
        self._trials: dict[int, Any] = {}

    def suggest(self, number: int) -> Point:
        trial = self._trials[number] = self._study.ask()
        return self._suggest_all(trial, self._space.parameters, "")

    def _suggest_all(self, trial: Any, parameters: Sequence[Parameter], branch: str) -> dict[str, Value]:
        point: dict[str, Value] = {}
        for parameter in parameters:
            # Children with one name are parameters of their own.
            value = _suggest(trial, parameter, f"{branch}{parameter.name}")
            point[parameter.name] = value
            children = parameter.list_active_children(value)
            point |= self._suggest_all(trial, children, f"{branch}{value}.")
        return point

    def complete(self, number: int, value: float) -> None:
        self._study.tell(self._trials.pop(number), value)


def _suggest(trial: Any, parameter: Parameter, name: str) -> Value:
    low, high, log = parameter.minimum, parameter.maximum, parameter.scale is not Scale.LINEAR
    value: Value
    match parameter.kind:
        case ParameterKind.INTEGER:
            value = trial.suggest_int(name, low, high, log=log)
        case ParameterKind.DOUBLE if parameter.scale is Scale.REVERSE_LOG:
            # It has no such scale: turned over by its user.
            value = low + high - trial.suggest_float(name, low, high, log=True)
        case ParameterKind.DOUBLE:
            value = trial.suggest_float(name, low, high, log=log)
        case _:
            value = trial.suggest_categorical(name, parameter.values)
    return value


def main() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for line in sys.stdin.buffer:
        result = run_search(msgspec.json.decode(line, type=SearchOrder), OptunaSearcher)
        sys.stdout.buffer.write(msgspec.json.encode(result) + b"\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
