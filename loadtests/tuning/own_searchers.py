"""The suggestions of `tuning`, as the process that suggests computes them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping

import msgspec
from threadpoolctl import threadpool_limits

from loadtests.tuning.functions import HARTMANN6, ObjectiveFunction
from loadtests.tuning.searches import MakeSearcher
from tuning.messages import KnownTrial, SuggestionAnswer, SuggestionRequest
from tuning.space import Point, Value
from tuning.study import Algorithm, Goal, Metric, Study
from tuning.suggester import answer_request

_LATENCY_REPEATS = 5


class OwnSearcher:
    def __init__(self, function: ObjectiveFunction, seed: int, algorithm: Algorithm) -> None:
        threadpool_limits(1)
        self._study = Study(
            uid=f"{function.name}-{seed}",
            space=function.space,
            metrics=(Metric("value", Goal.MINIMIZE),),
            algorithm=algorithm,
        )
        self._trials: dict[int, KnownTrial] = {}

    def suggest(self, number: int) -> Point:
        request = SuggestionRequest(self._study, tuple(self._trials.values()), 1, number)
        answer = answer_request(request)
        if not isinstance(answer, SuggestionAnswer) or not answer.points:
            raise RuntimeError(f"no suggestion: {answer}")
        self._trials[number] = KnownTrial(number, answer.points[0])
        return answer.points[0]

    def add_known(self, trials: Iterable[KnownTrial]) -> None:
        self._trials |= {trial.number: trial for trial in trials}

    def complete(self, number: int, value: float) -> None:
        self._trials[number] = msgspec.structs.replace(self._trials[number], objectives=(value,))


def make_gaussian_process(function: ObjectiveFunction, seed: int) -> OwnSearcher:
    return OwnSearcher(function, seed, Algorithm.GAUSSIAN_PROCESS_BANDIT)


def make_random(function: ObjectiveFunction, seed: int) -> OwnSearcher:
    return OwnSearcher(function, seed, Algorithm.RANDOM_SEARCH)


OWN_SEARCHERS: Mapping[str, MakeSearcher] = {"pilotlight": make_gaussian_process, "random": make_random}


def measure_latency(known: int) -> float:
    """Seconds of the fastest of several suggestions, given so many trials by chance of `HARTMANN6`.

    Each is for another study, so that nothing is there already.
    """
    chance = random.Random(0)
    trials = []
    for number in range(1, known + 1):
        point: dict[str, Value] = {f"x{index}": chance.random() for index in range(6)}
        trials.append(KnownTrial(number, point, (HARTMANN6.compute(point),)))
    seconds = []
    for repeat in range(_LATENCY_REPEATS):
        searcher = make_gaussian_process(HARTMANN6, repeat)
        searcher.add_known(trials)
        begun = time.perf_counter()
        searcher.suggest(known + 1)
        seconds.append(time.perf_counter() - begun)
    return min(seconds)
