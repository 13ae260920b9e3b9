"""Searches of a function by one searcher. Other environments use it too: it imports nothing heavy itself."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import msgspec

from loadtests.tuning.functions import FUNCTIONS, ObjectiveFunction
from tuning.space import Point


class Searcher(Protocol):
    """Chooses points; `number` counts trials from 1."""

    def suggest(self, number: int) -> Point: ...

    def complete(self, number: int, value: float) -> None: ...


MakeSearcher = Callable[[ObjectiveFunction, int], Searcher]


class SearchOrder(msgspec.Struct, frozen=True):
    """`parallel`: how many trials are at work at a time; the oldest ends first."""

    searcher: str
    function: str
    parallel: int
    seed: int
    trials: int


class SearchResult(msgspec.Struct, frozen=True):
    """After each trial: the regret of the trial that has measured best so far; and seconds per suggestion."""

    order: SearchOrder
    regrets: tuple[float, ...]
    seconds: float


def run_search(order: SearchOrder, make_searcher: MakeSearcher) -> SearchResult:
    function = FUNCTIONS[order.function]
    searcher = make_searcher(function, order.seed)
    chance = random.Random(order.seed)
    regrets: list[float] = []
    best, regret = float("inf"), float("inf")
    seconds = 0.0
    working: deque[tuple[int, Point]] = deque()
    for number in range(1, order.trials + order.parallel):
        if number <= order.trials:
            begun = time.perf_counter()
            working.append((number, searcher.suggest(number)))
            seconds += time.perf_counter() - begun
        if number < order.parallel:
            continue
        ended, point = working.popleft()
        value = function.measure(point, chance)
        searcher.complete(ended, value)
        if value < best:
            best, regret = value, function.compute_regret(point)
        regrets.append(regret)
    return SearchResult(order, tuple(regrets), seconds / order.trials)
