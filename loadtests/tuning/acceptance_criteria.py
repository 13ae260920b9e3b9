"""What suggestions must reach, by medians over the seeds; see docs/tuning.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadtests.tuning.functions import BRANIN, FUNCTIONS, HARTMANN6
from loadtests.tuning.report import compute_medians, group_curves
from loadtests.tuning.searches import SearchResult

OWN, OPTUNA, RANDOM = "pilotlight", "optuna", "random"
USUAL = (BRANIN.name, HARTMANN6.name)
OTHERS = tuple(name for name in FUNCTIONS if name not in USUAL)
# Medians of the regret after 100 trials.
_LIMITS = {BRANIN.name: 0.001, HARTMANN6.name: 0.02}
# Regrets below are the minimum, for all who tune: of two of them neither is worse.
_AS_GOOD_AS_FOUND = 1e-3
# On how many of the six others Optuna is not better.
_LEAST_EQUAL = 4


@dataclass(frozen=True)
class Criterion:
    text: str
    reached: bool

    def format(self) -> str:
        return f"{'reached' if self.reached else 'MISSED '}  {self.text}"


def check_criteria(results: Sequence[SearchResult]) -> list[Criterion]:
    """Raises KeyError where a search is missing."""
    curves = group_curves(results)

    def find_regret(name: str, trials: int, searcher: str = OWN, parallel: int = 1) -> float:
        return compute_medians(curves[name, parallel, searcher])[trials - 1]

    criteria = []
    for name in USUAL:
        early, theirs = find_regret(name, 50), find_regret(name, 100, OPTUNA)
        text = f"{name}: {early:.2g} after 50 trials, Optuna {theirs:.2g} after 100"
        criteria.append(Criterion(text, early <= theirs))
        regret, limit = find_regret(name, 100), _LIMITS[name]
        criteria.append(Criterion(f"{name}: {regret:.2g} after 100 trials, at most {limit}", regret <= limit))
        parallel = find_regret(name, 100, parallel=4)
        text = f"{name}: {parallel:.2g} with four in parallel, at most twice as much"
        criteria.append(Criterion(text, parallel <= max(2.0 * regret, _AS_GOOD_AS_FOUND)))
    not_worse = 0
    for name in OTHERS:
        regret, chance, theirs = (find_regret(name, 100, one) for one in (OWN, RANDOM, OPTUNA))
        criteria.append(Criterion(f"{name}: {regret:.2g}, random {chance:.2g}", regret <= chance))
        not_worse += regret <= max(theirs, _AS_GOOD_AS_FOUND)
    text = f"as good as Optuna on {not_worse} of {len(OTHERS)} others, at least on {_LEAST_EQUAL}"
    return [*criteria, Criterion(text, not_worse >= _LEAST_EQUAL)]
