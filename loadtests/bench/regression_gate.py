"""Fails when serving has become slower: its rates relative to an echo's, and the gateway's to its node's.

    python -m loadtests.bench.regression_gate

Servers run at the same time on one core, and are loaded in turns from another, a second each, so that a noisy
machine disturbs all alike. What counts is the median of the ratios turn by turn. Limits stand well below what
was measured on a quiet machine: they tell that something broke; docs/performance.md has figures.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from loadtests.bench.load_clients.answers import check_answers, read_expected
from loadtests.bench.load_clients.programs import PROGRAM_NAMES, LoadProgram, choose_program
from loadtests.bench.targets.processes import exit_on_sigterm
from loadtests.bench.targets.servers import SERVERS, RunningServer, ServerDefinition, run_server
from loadtests.bench.workloads import WORKLOADS, BenchFiles, Workload, train_models

CONNECTIONS = 64
_FOLDER = Path("build/bench")
_START_SECONDS, REST_SECONDS = 120.0, 20.0


@dataclass(frozen=True)
class RatioLimit:
    """The least ratio of a server's rate to that of another, on one workload."""

    workload: str
    server: str
    of: str
    least: float


LIMITS = (
    RatioLimit("W1", "node", "echo", 0.50),
    RatioLimit("W1", "gateway", "node", 0.35),
    RatioLimit("W1", "gateway", "echo", 0.30),
    RatioLimit("W2", "node", "echo", 0.35),
    RatioLimit("W3", "node", "echo", 0.45),
    RatioLimit("W5", "node", "echo", 0.40),
)


@dataclass(frozen=True)
class LimitResult:
    """The measured ratio of a limit."""

    limit: RatioLimit
    ratio: float

    @property
    def passed(self) -> bool:
        return self.ratio >= self.limit.least

    def __str__(self) -> str:
        limit, word = self.limit, "ok" if self.passed else "TOO SLOW"
        said = f"{limit.workload}: {limit.server} / {limit.of}"
        return f"  {said:22} {self.ratio:.2f}, at least {limit.least:.2f}: {word}"


def main() -> int:
    """Measure and print; 1 when a limit was not kept or an answer was wrong."""
    title, _, more = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.bench.regression_gate",
        description=title,
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--turns", type=int, default=7, metavar="N", help="loads of each server (default: 7)")
    parser.add_argument("--seconds", type=float, default=1, metavar="X", help="length of each (default: 1)")
    parser.add_argument(
        "--client", choices=PROGRAM_NAMES, default="auto", help="what makes the load (default: auto)"
    )
    parser.add_argument("--folder", type=Path, default=_FOLDER, help=f"models and logs (default: {_FOLDER})")
    options = parser.parse_args()
    exit_on_sigterm()
    cores = sorted(os.sched_getaffinity(0))
    client, material = choose_program(options.client, cores[-1]), BenchFiles(options.folder)
    workloads = [WORKLOADS[name] for name in dict.fromkeys(limit.workload for limit in LIMITS)]
    train_models(material, workloads)
    verdicts: list[LimitResult] = []
    for workload in workloads:
        print(f"{workload.name}, {workload.title}", file=sys.stderr, flush=True)
        servers = [SERVERS[name] for name in _server_names(workload)]
        rates = measure_rates(
            material, workload, servers, client, turns=options.turns, seconds=options.seconds, core=cores[0]
        )
        for verdict in judge_limits(workload, rates):
            print(verdict, flush=True)
            verdicts.append(verdict)
    return 0 if all(verdict.passed for verdict in verdicts) else 1


def _server_names(workload: Workload) -> Iterable[str]:
    return dict.fromkeys(
        name for limit in LIMITS if limit.workload == workload.name for name in (limit.of, limit.server)
    )


def measure_rates(
    material: BenchFiles,
    workload: Workload,
    servers: Iterable[ServerDefinition],
    client: LoadProgram,
    *,
    turns: int,
    seconds: float,
    core: int,
) -> Mapping[str, Sequence[float]]:
    """Requests per second of each server, turn by turn. Raises SystemExit for a wrong answer."""
    bodies, connections = material.bodies_file(workload), choose_connections(workload)
    with run_warm_servers(material, workload, servers, client, seconds=seconds, core=core) as running:
        rates: dict[str, list[float]] = {name: [] for name in running}
        for _ in range(turns):
            for name, one in running.items():
                rates[name].append(client.run_load(one.url, bodies, connections, seconds).rps)
                # It may still compute what the client no longer waits for, at the cost of the next turn.
                one.wait_until_idle(REST_SECONDS)
        return rates


@contextmanager
def run_warm_servers(
    material: BenchFiles,
    workload: Workload,
    servers: Iterable[ServerDefinition],
    client: LoadProgram,
    *,
    seconds: float,
    core: int,
) -> Iterator[Mapping[str, RunningServer]]:
    """The servers by name on one core, each after a first load. Raises SystemExit for a wrong answer."""
    bodies = material.bodies_file(workload)
    expect = read_expected(bodies, material.answers_file(workload))
    logs = material.folder / "logs"
    logs.mkdir(exist_ok=True)
    with ExitStack() as stack:
        running: dict[str, RunningServer] = {}
        for server in servers:
            running[server.name] = one = stack.enter_context(
                run_server(
                    server,
                    workload.model,
                    material.model_dir(workload.model),
                    expect.bodies[0],
                    core=core,
                    limit=_START_SECONDS,
                    logs=logs,
                )
            )
            if not server.constant and (said := check_answers(one.url, expect)):
                raise SystemExit(f"{workload.name}, {server.name}: {said}")
            one.wait_until_idle(REST_SECONDS)
            client.run_load(one.url, bodies, choose_connections(workload), seconds)
            one.wait_until_idle(REST_SECONDS)
        yield running


def choose_connections(workload: Workload) -> int:
    return min(CONNECTIONS, workload.most_connections)


def judge_limits(workload: Workload, rates: Mapping[str, Sequence[float]]) -> list[LimitResult]:
    """The limits of a workload, with the median ratio of its servers turn by turn."""
    return [
        LimitResult(
            limit,
            median(ours / base for ours, base in zip(rates[limit.server], rates[limit.of], strict=True)),
        )
        for limit in LIMITS
        if limit.workload == workload.name
    ]


if __name__ == "__main__":
    sys.exit(main())
