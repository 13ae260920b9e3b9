"""Chooses the points of new trials."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tuning.algorithms import bayesian_search, grid_search, random_search
from tuning.algorithms.history import History
from tuning.messages import SuggestionAnswer, SuggestionRequest
from tuning.space import Value, count_points
from tuning.study import Algorithm

_ALGORITHMS: Mapping[Algorithm, Callable[[History, int], dict[str, Value]]] = {
    Algorithm.GAUSSIAN_PROCESS_BANDIT: bayesian_search.propose_point,
    Algorithm.GRID_SEARCH: grid_search.propose_point,
    Algorithm.RANDOM_SEARCH: random_search.propose_point,
}


def suggest_points(request: SuggestionRequest) -> SuggestionAnswer:
    """No point is tried twice, so that a finite space may be used up."""
    history = History.build(request.study, request.trials)
    size = count_points(request.study.space)
    points: list[dict[str, Value]] = []
    for number in range(request.first_number, request.first_number + request.count):
        if size is not None and len(history.taken) >= size:
            return SuggestionAnswer(tuple(points), exhausted=True)
        point = _ALGORITHMS[request.study.algorithm](history, number)
        points.append(point)
        history = history.add_pending(point)
    return SuggestionAnswer(tuple(points))
