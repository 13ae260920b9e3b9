"""Searches known functions beside Optuna's default sampler and random search.

    python -m loadtests.tuning                                     all, 20 seeds each: about an hour
    python -m loadtests.tuning --functions branin --seeds 3        a first look
    python -m loadtests.tuning --minutes 4                         a part: the next call goes on from there
    python -m loadtests.tuning --latency                           time per suggestion, by known trials
    python -m loadtests.tuning.report build/tuning/results.jsonl   the tables once more, and the picture

Each search has a seed, and takes as many trials one after the other, or so many in parallel. Optuna comes
into an environment of its own at the first call. Results are JSON lines, one per search; searches that are in
the file already are not repeated.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import subprocess
import sys
import time
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from loadtests.tuning import report
from loadtests.tuning.acceptance_criteria import check_criteria
from loadtests.tuning.functions import FUNCTIONS
from loadtests.tuning.own_searchers import OWN_SEARCHERS, measure_latency
from loadtests.tuning.searches import SearchOrder, SearchResult, run_search

FOLDER = Path("build/tuning")
OPTUNA = "optuna"
# What the measurements in docs/tuning.md were made with.
OPTUNA_REQUIREMENTS = ("optuna==5.0.0", "msgspec")
SEARCHERS = (*OWN_SEARCHERS, OPTUNA)
_LATENCY_TRIALS = (100, 300, 1000, 1500)


def main(arguments: Sequence[str]) -> None:
    options = _read_options(arguments)
    if options.latency:
        for known in _LATENCY_TRIALS:
            print(f"{known} known trials: {measure_latency(known) * 1e3:.0f} ms per suggestion")
        return
    options.results.parent.mkdir(parents=True, exist_ok=True)
    there = {result.order for result in report.read_results(options.results)}
    orders = [order for order in list_orders(options) if order not in there]
    end = time.monotonic() + 60.0 * options.minutes
    with options.results.open("ab") as file:
        for result in itertools.chain(_run_own(orders, end), _run_optuna(orders, end)):
            file.write(msgspec.json.encode(result) + b"\n")
            file.flush()
    results = report.read_results(options.results)
    print(report.format_tables(results))
    with contextlib.suppress(KeyError):  # of a part of the searches there are no criteria
        print("", *(criterion.format() for criterion in check_criteria(results)), sep="\n")


def _read_options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtests.tuning", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--functions", default=",".join(FUNCTIONS), help="some of %(default)s")
    parser.add_argument("--searchers", default=",".join(SEARCHERS), help="some of %(default)s")
    parser.add_argument("--parallel", default="1,4", help="trials at work at a time (default %(default)s)")
    parser.add_argument(
        "--seeds", default="20", help='their number, or a range as "5-9" (default %(default)s)'
    )
    parser.add_argument("--trials", type=int, default=100, help="of each search (default %(default)s)")
    parser.add_argument("--minutes", type=float, default=600.0, help="after these no search is begun")
    parser.add_argument("--results", type=Path, default=FOLDER / "results.jsonl")
    parser.add_argument("--latency", action="store_true", help="measure seconds per suggestion instead")
    return parser.parse_args(arguments)


def list_orders(options: argparse.Namespace) -> Iterator[SearchOrder]:
    """Seeds in the outermost loop: an early end leaves fewer seeds of all functions."""
    first, _, last = options.seeds.rpartition("-")
    for seed in range(int(first or 0), int(last) + bool(first)):
        for parallel, function, searcher in itertools.product(
            options.parallel.split(","), options.functions.split(","), options.searchers.split(",")
        ):
            yield SearchOrder(searcher, function, int(parallel), seed, options.trials)


def _run_own(orders: Sequence[SearchOrder], end: float) -> Iterator[SearchResult]:
    for order in orders:
        if order.searcher in OWN_SEARCHERS and time.monotonic() < end:
            yield run_search(order, OWN_SEARCHERS[order.searcher])


def _run_optuna(orders: Sequence[SearchOrder], end: float) -> Iterator[SearchResult]:
    theirs = [order for order in orders if order.searcher == OPTUNA]
    if not theirs or time.monotonic() >= end:
        return
    command = [_install_optuna(), "-m", "loadtests.tuning.optuna_searcher"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("the process has no pipes")
        for order in theirs:
            if time.monotonic() >= end:
                break
            process.stdin.write(msgspec.json.encode(order) + b"\n")
            process.stdin.flush()
            yield msgspec.json.decode(process.stdout.readline(), type=SearchResult)
        process.stdin.close()


def _install_optuna() -> str:
    """The interpreter of an environment with Optuna, which is made where it is missing."""
    folder = FOLDER / "optuna"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *OPTUNA_REQUIREMENTS], check=True)
        (folder / "complete").touch()
    return str(python)


if __name__ == "__main__":
    main(sys.argv[1:])
