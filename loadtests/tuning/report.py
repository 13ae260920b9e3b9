"""Tables and a picture of searches: `python -m loadtests.tuning.report RESULTS [--plot FILE]`."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from loadtests.tuning.functions import FUNCTIONS
from loadtests.tuning.searches import SearchResult

_CHECKPOINTS = (25, 50, 100)
_COLORS = {"pilotlight": "#0b6e4f", "optuna": "#c1440e", "random": "#8a8a8a"}
_LEAST_REGRET = 1e-6

# By function, parallel trials and searcher: one regret per seed and trial.
Curves = Mapping[tuple[str, int, str], Sequence[Sequence[float]]]


def read_results(file: Path) -> list[SearchResult]:
    """The last line may be cut off, by an end in the middle of it."""
    if not file.exists():
        return []
    lines = file.read_bytes().splitlines(keepends=True)
    return [msgspec.json.decode(line, type=SearchResult) for line in lines if line.endswith(b"\n")]


def group_curves(results: Sequence[SearchResult]) -> Curves:
    curves: dict[tuple[str, int, str], list[Sequence[float]]] = defaultdict(list)
    for result in sorted(results, key=lambda one: one.order.seed):
        order = result.order
        curves[order.function, order.parallel, order.searcher].append(result.regrets)
    return curves


def compute_medians(curves: Sequence[Sequence[float]]) -> list[float]:
    """The median over the seeds, after each trial."""
    return [statistics.median(column) for column in zip(*curves, strict=False)]


def format_tables(results: Sequence[SearchResult]) -> str:
    """One table per number of parallel trials: medians of the regret, as Markdown."""
    curves = group_curves(results)
    searchers = [name for name in _COLORS if any(key[2] == name for key in curves)]
    tables = []
    for parallel in sorted({key[1] for key in curves}):
        lines = [
            f"Median regret after {', '.join(map(str, _CHECKPOINTS))} trials, {parallel} at a time:",
            "",
            f"| function | seeds | {' | '.join(searchers)} |",
            f"|---|--:|{'--:|' * len(searchers)}",
        ]
        for function in FUNCTIONS:
            found = [curves.get((function, parallel, searcher), ()) for searcher in searchers]
            if any(found):
                cells = [_format_cell(one) for one in found]
                seeds = min(len(one) for one in found if one)
                lines.append(f"| {function} | {seeds} | {' | '.join(cells)} |")
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def _format_cell(curves: Sequence[Sequence[float]]) -> str:
    medians = compute_medians(curves)
    return (
        " / ".join(_format_regret(medians[count - 1]) for count in _CHECKPOINTS if count <= len(medians))
        or "-"
    )


def _format_regret(regret: float) -> str:
    if regret < _LEAST_REGRET:
        return "0"
    return f"{regret:.1e}" if regret < 1e-3 else f"{regret:.3g}"


def write_plot(results: Sequence[SearchResult], file: Path) -> None:
    """A chart per function, of trials one after the other: median, and the middle half of the seeds."""
    import matplotlib as mpl  # noqa: PLC0415

    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    curves = group_curves(results)
    figure, axes = plt.subplots(2, 4, figsize=(13, 6), sharex=True)
    for function, axis in zip(FUNCTIONS, axes.flat, strict=True):
        for searcher, color in _COLORS.items():
            found = curves.get((function, 1, searcher), ())
            if not found:
                continue
            columns = [
                sorted(max(one, _LEAST_REGRET) for one in column) for column in zip(*found, strict=False)
            ]
            trials = range(1, len(columns) + 1)
            axis.plot(trials, [statistics.median(one) for one in columns], color=color, label=searcher)
            low = [one[len(one) // 4] for one in columns]
            high = [one[(3 * len(one)) // 4 if len(one) > 1 else 0] for one in columns]
            axis.fill_between(trials, low, high, color=color, alpha=0.15, linewidth=0)
        axis.set_yscale("log")
        axis.set_title(function)
        axis.grid(alpha=0.25)
    for axis in axes[1]:
        axis.set_xlabel("trials")
    for axis in axes[:, 0]:
        axis.set_ylabel("regret")
    axes[0, 0].legend()
    figure.tight_layout()
    figure.savefig(file, dpi=80)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtests.tuning.report", description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--plot", type=Path, help="a PNG or SVG file to write")
    options = parser.parse_args(arguments)
    results = read_results(options.results)
    print(format_tables(results))
    if options.plot:
        write_plot(results, options.plot)


if __name__ == "__main__":
    main(sys.argv[1:])
