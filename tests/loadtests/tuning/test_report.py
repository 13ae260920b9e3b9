from __future__ import annotations

import itertools
from pathlib import Path

import msgspec

from loadtests.tuning.acceptance_criteria import OPTUNA, OWN, RANDOM, check_criteria
from loadtests.tuning.functions import FUNCTIONS
from loadtests.tuning.report import format_tables, main, read_results
from loadtests.tuning.searches import SearchOrder, SearchResult

REGRETS = {OWN: 1e-4, OPTUNA: 0.03, RANDOM: 0.5}


def make_results(regrets: dict[str, float]) -> list[SearchResult]:
    """Two seeds of every search, of regrets that fall to these at the last trial."""
    return [
        SearchResult(
            SearchOrder(searcher, function, parallel, seed, 100),
            tuple(regret * 100 / trial for trial in range(1, 101)),
            0.01,
        )
        for function, parallel, seed in itertools.product(FUNCTIONS, (1, 4), (0, 1))
        for searcher, regret in regrets.items()
    ]


def test_a_result_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    results = make_results(REGRETS)[:2]
    lines = [msgspec.json.encode(result) + b"\n" for result in results]
    file.write_bytes(lines[0] + lines[1] + lines[0][:20])

    assert read_results(file) == results
    assert read_results(tmp_path / "none") == []


def test_tables_have_medians_at_three_points() -> None:
    table = format_tables(make_results(REGRETS))

    assert "| branin | 2 | 4.0e-04 / 2.0e-04 / 1.0e-04 | 0.12 / 0.06 / 0.03 | 2 / 1 / 0.5 |" in table
    assert "100 trials, 4 at a time:" in table


def test_targets() -> None:
    assert all(one.reached for one in check_criteria(make_results(REGRETS)))
    missed = [one.text for one in check_criteria(make_results({**REGRETS, OWN: 0.6})) if not one.reached]
    assert len(missed) == 2 + 2 + len(FUNCTIONS) - 2 + 1
    assert "branin: 0.6 after 100 trials, at most 0.001" in missed


def test_a_picture_is_written(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    file.write_bytes(b"".join(msgspec.json.encode(result) + b"\n" for result in make_results(REGRETS)))

    main([str(file), "--plot", str(tmp_path / "plot.png")])

    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
