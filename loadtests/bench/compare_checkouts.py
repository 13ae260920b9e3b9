"""Fails when node or gateway became slower than those of another checkout of Pilotlight.

    git worktree add ../before REVISION && make -C ../before demo
    python -m loadtests.bench.compare_checkouts ../before

Both states run on one core and are loaded at the same time from another. What counts is how many requests
each answers per second of its own CPU time: what disturbs the machine, even for a moment, disturbs both
alike. The median of the ratios turn by turn is held against the least that is allowed. The other checkout has
to have a .venv of its own.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, quantiles

from loadtests.bench.load_clients.programs import PROGRAM_NAMES, LoadProgram, choose_program
from loadtests.bench.regression_gate import REST_SECONDS, choose_connections, run_warm_servers
from loadtests.bench.targets.processes import exit_on_sigterm
from loadtests.bench.targets.servers import SERVERS, RunningServer, ServerDefinition
from loadtests.bench.workloads import WORKLOADS, BenchFiles, Workload, train_models

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
    parser.add_argument("--turns", type=int, default=9, metavar="N", help="loads of each pair (default: 9)")
    parser.add_argument("--seconds", type=float, default=2, metavar="X", help="length of each (default: 2)")
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
            turns = measure_pair(
                material,
                workload,
                (ours, before),
                client,
                turns=options.turns,
                seconds=options.seconds,
                core=cores[0],
            )
            low, ratio, high = quantiles((turn.ratio for turn in turns), n=4)
            slower |= ratio < options.least
            print(
                f"  {workload.name}: {ours.name:8} {median(turn.ours for turn in turns):9,.0f} requests "
                f"per CPU second, before {median(turn.before for turn in turns):9,.0f}, "
                f"ratio {ratio:.3f} ({low:.3f} to {high:.3f}){'  TOO SLOW' if ratio < options.least else ''}",
                flush=True,
            )
    return int(slower)


@dataclass(frozen=True, slots=True)
class Turn:
    """Requests per second of CPU time of either state, loaded at the same time."""

    ours: float
    before: float

    @property
    def ratio(self) -> float:
        return self.ours / self.before


def measure_pair(
    material: BenchFiles,
    workload: Workload,
    pair: tuple[ServerDefinition, ServerDefinition],
    client: LoadProgram,
    *,
    turns: int,
    seconds: float,
    core: int,
) -> list[Turn]:
    """Our server is the first of the pair. Raises SystemExit for a wrong answer."""
    bodies, connections = material.bodies_file(workload), choose_connections(workload)

    def load(one: RunningServer) -> float:
        before = _read_cpu_seconds(one)
        requests = client.run_load(one.url, bodies, connections, seconds).requests
        # What the client no longer waits for is computed as well.
        one.wait_until_idle(REST_SECONDS)
        after = _read_cpu_seconds(one)
        return requests / sum(spent - before.get(pid, 0) for pid, spent in after.items())

    with (
        run_warm_servers(material, workload, pair, client, seconds=seconds, core=core) as running,
        ThreadPoolExecutor(len(pair)) as threads,
    ):
        return [Turn(*threads.map(load, running.values())) for _ in range(turns)]


def _read_cpu_seconds(server: RunningServer) -> Mapping[int, float]:
    """Of each of its processes."""
    usage = server.measure_usage()
    return {} if usage is None else usage.cpu


def server_of_checkout(server: ServerDefinition, checkout: Path) -> ServerDefinition:
    """The same server, run by the code and the interpreter of another checkout."""
    python = shlex.quote(str(checkout / ".venv/bin/python"))
    command = server.command.replace(shlex.quote(sys.executable), python)
    return replace(
        server, name=f"{server.name}-before", command=f"env -C {shlex.quote(str(checkout))} {command}"
    )


if __name__ == "__main__":
    sys.exit(main())
