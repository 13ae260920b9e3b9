"""Chooses the points of new trials."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from tuning.algorithms import bayesian_search, grid_search, random_search
from tuning.algorithms.history import History
from tuning.messages import SuggestionAnswer, SuggestionRequest
from tuning.space import Value, count_points
from tuning.study import Algorithm

# A fraction of what the gateway waits, so that an answer comes even if the last point takes as long again.
MAX_SECONDS = 20.0

_ALGORITHMS: Mapping[Algorithm, Callable[[History, int], dict[str, Value] | None]] = {
    Algorithm.GAUSSIAN_PROCESS_BANDIT: bayesian_search.propose_point,
    Algorithm.GRID_SEARCH: grid_search.propose_point,
    Algorithm.RANDOM_SEARCH: random_search.propose_point,
}


def suggest_points(
    request: SuggestionRequest, read_clock: Callable[[], float] = time.monotonic
) -> SuggestionAnswer:
    """No point is tried twice, so that a space may be used up.

    At least one point; no further one is begun after MAX_SECONDS.
    """
    end = read_clock() + MAX_SECONDS
    history = History.build(request.study, request.trials)
    size = count_points(request.study.space)
    points: list[dict[str, Value]] = []
    for number in range(request.first_number, request.first_number + request.count):
        if points and read_clock() >= end:
            break
        is_used_up = size is not None and len(history.taken) >= size
        point = None if is_used_up else _ALGORITHMS[request.study.algorithm](history, number)
        if point is None:
            return SuggestionAnswer(tuple(points), exhausted=True)
        points.append(point)
        history = history.add_pending(point)
    return SuggestionAnswer(tuple(points))
