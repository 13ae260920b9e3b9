"""Fails when node or gateway became slower than those of another checkout of Pilotlight.

    git worktree add ../before REVISION && make -C ../before demo
    python -m loadtests.bench.compare_checkouts ../before

Both states run at the same time on one core, and are loaded in turns from another, so that a noisy machine
disturbs both alike. What counts is the median of the ratios turn by turn. The other checkout has to have a
.venv of its own.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles

from loadtests.bench.load_clients.programs import PROGRAM_NAMES, choose_program
from loadtests.bench.regression_gate import measure_rates
from loadtests.bench.targets.processes import exit_on_sigterm
from loadtests.bench.targets.servers import SERVERS, ServerDefinition
from loadtests.bench.workloads import WORKLOADS, BenchFiles, train_models

_FOLDER = Path("build/bench")
_OURS = ("node", "gateway")


def main() -> int:
    """Measure and print; 1 when a ratio is below the least that is allowed or an answer was wrong."""
    title, _, more = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.bench.compare_checkouts",
        description=title,
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkout", type=Path, help="the other checkout")
    parser.add_argument(
        "--workloads", default=",".join(WORKLOADS), help="comma separated (default: all of W1 to W6)"
    )
    parser.add_argument("--least", type=float, default=0.97, metavar="R", help="lowest ratio (default: 0.97)")
    parser.add_argument(
        "--turns", type=int, default=15, metavar="N", help="loads of each server (default: 15)"
    )
    parser.add_argument("--seconds", type=float, default=1, metavar="X", help="length of each (default: 1)")
    parser.add_argument(
        "--client", choices=PROGRAM_NAMES, default="auto", help="what makes the load (default: auto)"
    )
    parser.add_argument("--folder", type=Path, default=_FOLDER, help=f"models and logs (default: {_FOLDER})")
    options = parser.parse_args()
    exit_on_sigterm()
    cores = sorted(os.sched_getaffinity(0))
    client, material = choose_program(options.client, cores[-1]), BenchFiles(options.folder.resolve())
    workloads = [WORKLOADS[name] for name in options.workloads.split(",")]
    train_models(material, workloads)
    pairs = [(SERVERS[name], server_of_checkout(SERVERS[name], options.checkout.resolve())) for name in _OURS]
    slower = False
    for workload in workloads:
        print(f"{workload.name}, {workload.title}", file=sys.stderr, flush=True)
        for ours, before in pairs:
            rates = measure_rates(
                material,
                workload,
                (ours, before),
                client,
                turns=options.turns,
                seconds=options.seconds,
                core=cores[0],
            )
            ratios = [new / old for new, old in zip(rates[ours.name], rates[before.name], strict=True)]
            low, ratio, high = quantiles(ratios, n=4)[0], median(ratios), quantiles(ratios, n=4)[2]
            slower |= ratio < options.least
            print(
                f"  {workload.name}: {ours.name:8} {median(rates[ours.name]):9,.0f} requests/s, "
                f"before {median(rates[before.name]):9,.0f}, ratio {ratio:.3f} ({low:.3f} to {high:.3f})"
                f"{'  TOO SLOW' if ratio < options.least else ''}",
                flush=True,
            )
    return int(slower)


def server_of_checkout(server: ServerDefinition, checkout: Path) -> ServerDefinition:
    """The same server, run by the code and the interpreter of another checkout."""
    python = shlex.quote(str(checkout / ".venv/bin/python"))
    command = server.command.replace(shlex.quote(sys.executable), python)
    return replace(
        server, name=f"{server.name}-before", command=f"env -C {shlex.quote(str(checkout))} {command}"
    )


if __name__ == "__main__":
    sys.exit(main())
