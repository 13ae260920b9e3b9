"""How good suggestions are. The long form is the measurement of docs/tuning.md, with Optuna beside."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import pytest

from loadtests.tuning.__main__ import main
from loadtests.tuning.acceptance_criteria import check_criteria
from loadtests.tuning.own_searchers import OWN_SEARCHERS, measure_latency
from loadtests.tuning.report import read_results
from loadtests.tuning.searches import SearchOrder, run_search


def find_median(searcher: str, function: str, trials: int, parallel: int = 1) -> float:
    """The regret after so many trials, of three seeds."""
    orders = [SearchOrder(searcher, function, parallel, seed, trials) for seed in range(3)]
    return statistics.median(run_search(one, OWN_SEARCHERS[searcher]).regrets[-1] for one in orders)


@pytest.mark.parametrize("parallel", [1, 4])
def test_the_minimum_of_two_numbers_is_found(parallel: int) -> None:
    assert find_median("pilotlight", "branin", 45, parallel) < 0.02


@pytest.mark.parametrize("function", ["log-scaled", "integer", "categorical", "conditional"])
def test_suggestions_are_better_than_chance(function: str) -> None:
    assert find_median("pilotlight", function, 40) < find_median("random", function, 40)


@pytest.mark.alone
@pytest.mark.parametrize(("known", "limit"), [(100, 0.1), (1000, 1.0), (1500, 1.0)])
def test_a_suggestion_is_quick(known: int, limit: float) -> None:
    assert measure_latency(known) < limit


@pytest.mark.soak
@pytest.mark.timeout(3 * 3600)
def test_suggestions_reach_their_targets(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    main(["--results", str(results)])

    missed = [one.text for one in check_criteria(read_results(results)) if not one.reached]
    # About half of these searches end on the second-best hill: see docs/tuning.md.
    assert [text for text in missed if not re.match("hartmann6: .* with four in parallel", text)] == []
