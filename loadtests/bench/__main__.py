"""Measures servers with six workloads: servers on one core, the load on another.

    python -m loadtests.bench                                        all six, about half an hour
    python -m loadtests.bench --workloads W1 --rounds 1 --seconds 2  a first look, about a minute
    python -m loadtests.bench --proxies nginx,haproxy --workloads W1,W6
    python -m loadtests.bench --beside 'mine=python server.py {port} {model_dir}' --beside-path /predict
    python -m loadtests.bench.report build/bench/results.jsonl       the tables once more, and plots

In each round every server is started anew, is left until it is idle (at most 20 s), has to answer as the
library predicts, is warmed up, and is loaded with each number of connections; while it is loaded its answers
are still being compared. Load comes from wrk if it is there, else oha, else a client of our own. Results are
JSON lines; what is printed at the end are medians.
"""

from __future__ import annotations

import argparse
import http.client
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from loadtests.bench import report
from loadtests.bench.load_clients.answers import (
    ExpectedAnswers,
    HttpAsker,
    check_answers,
    check_during,
    read_expected,
)
from loadtests.bench.load_clients.programs import PROGRAM_NAMES, LoadProgram, LoadProgramError, choose_program
from loadtests.bench.reporting import results
from loadtests.bench.reporting.results import LoadFigures, LoadResult, MeasurementFailure, ServerResult
from loadtests.bench.targets.processes import exit_on_sigterm
from loadtests.bench.targets.servers import (
    DEFAULT_SERVERS,
    PROXY_SERVERS,
    SERVERS,
    RunningServer,
    ServerDefinition,
    ServerStartError,
    run_server,
)
from loadtests.bench.workloads import WORKLOADS, BenchFiles, Workload, train_models

FOLDER = Path("build/bench")
_WARM_UP_CONNECTIONS = 16
_REST_SECONDS = 20.0
_Result = LoadResult | ServerResult | MeasurementFailure
T = TypeVar("T")


@dataclass(frozen=True)
class BenchPlan:
    """What to measure. `seconds` is the length of each load; after `minutes` no more servers are started."""

    servers: Sequence[ServerDefinition]
    workloads: Sequence[Workload]
    connections: Sequence[int]
    rounds: int
    seconds: float
    warm_up: float
    limit: float
    minutes: float
    server_core: int | None

    def estimate_minutes(self) -> float:
        loads = sum(
            self.warm_up + self.seconds * sum(one <= workload.most_connections for one in self.connections)
            for workload in self.workloads
        )
        starts = 5.0 * len({workload.model for workload in self.workloads})
        return self.rounds * len(self.servers) * (loads + starts) / 60


@dataclass(frozen=True)
class BenchRun:
    """A plan, the files and the load program."""

    plan: BenchPlan
    material: BenchFiles
    client: LoadProgram

    def run_load(self, running: RunningServer, bodies: Path, connections: int) -> LoadFigures:
        """Run one load of the planned length. Raises LoadProgramError."""
        return self.client.run_load(running.url, bodies, connections, self.plan.seconds)


def main() -> int:
    """Measure and print; 1 when a server gave a wrong answer or could not be measured."""
    options = _build_parser().parse_args()
    try:
        plan = _plan_from_options(options)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    exit_on_sigterm()
    material = BenchFiles(options.folder)
    (options.folder / "logs").mkdir(parents=True, exist_ok=True)
    client = choose_program(options.client, options.client_core)
    train_models(material, plan.workloads)
    out: Path = options.out or options.folder / "results.jsonl"
    print(
        f"about {plan.estimate_minutes():.0f} minutes, loading with {client.name}; results go to {out}",
        file=sys.stderr,
    )
    with out.open("w") as file:
        for row, figures in run_plan(BenchRun(plan, material, client)):
            print(results.format_row(row, figures), file=file, flush=True)
            print(f"  {_format_progress(row)}", file=sys.stderr, flush=True)
    found = results.read_results([out])
    print(report.format_results(found))
    return 1 if found.failures or any(one.wrong for one in found.loads) else 0


def run_plan(bench: BenchRun) -> Iterator[tuple[_Result, LoadFigures | None]]:
    """Every row as it is measured. Servers take turns, so that a noisy hour disturbs all alike."""
    plan = bench.plan
    end = time.monotonic() + plan.minutes * 60
    models = dict.fromkeys(workload.model for workload in plan.workloads)
    for number in range(plan.rounds):
        for model in models:
            workloads = [one for one in plan.workloads if one.model == model]
            for server in plan.servers:
                if time.monotonic() > end:
                    return
                print(f"round {number + 1} of {plan.rounds}, {model}, {server.name}", file=sys.stderr)
                try:
                    yield from _measure_server(bench, server, workloads, number)
                except (ServerStartError, LoadProgramError, OSError, http.client.HTTPException) as error:
                    yield (
                        MeasurementFailure(server.name, model, f"{type(error).__name__}: {error}", number),
                        None,
                    )


def _measure_server(
    bench: BenchRun, server: ServerDefinition, workloads: Sequence[Workload], number: int
) -> Iterator[tuple[_Result, LoadFigures | None]]:
    plan, material = bench.plan, bench.material
    model = workloads[0].model
    known = {
        one.name: read_expected(material.bodies_file(one), material.answers_file(one)) for one in workloads
    }
    with run_server(
        server,
        model,
        material.model_dir(model),
        known[workloads[0].name].bodies[0],
        core=plan.server_core,
        limit=plan.limit,
        logs=material.folder / "logs",
    ) as running:
        running.wait_until_idle(_REST_SECONDS)
        for workload in workloads:
            bodies, expect = material.bodies_file(workload), known[workload.name]
            before = "" if server.constant else check_answers(running.url, expect)
            few = min(_WARM_UP_CONNECTIONS, workload.most_connections)
            bench.client.run_load(running.url, bodies, few, plan.warm_up)
            for connections in plan.connections:
                if connections <= workload.most_connections:
                    row = LoadResult(
                        server.name, model, workload.name, connections, 0, 0, 0, number, wrong=before
                    )
                    yield _measure_load(bench, running, bodies, None if server.constant else expect, row)
        usage = running.measure_usage()
        if usage is not None:
            yield (
                ServerResult(
                    server.name, model, running.start_seconds,
                    usage.rss_mib, usage.pss_mib, usage.processes, number,
                ),
                None,
            )  # fmt: skip


def _measure_load(
    bench: BenchRun, running: RunningServer, bodies: Path, expect: ExpectedAnswers | None, row: LoadResult
) -> tuple[LoadResult, LoadFigures]:
    """Run one load, once the queue of the last one is empty; with the CPU time that the server used."""
    _wait_queue_empty(running.url, bodies)
    before, front = running.measure_usage(), running.front_cpu_seconds()
    wrong = row.wrong
    if expect is None:
        figures = bench.run_load(running, bodies, row.conns)
    else:
        with check_during(running.url, expect) as watch:
            figures = bench.run_load(running, bodies, row.conns)
        wrong = wrong or watch.wrong
    after = running.measure_usage()
    cpu = front_cpu = None
    if before is not None and after is not None:
        used = sum(after.cpu.values()) - sum(before.cpu.values())
        cpu = round(used / figures.requests * 1e6, 1)
        front_cpu = round((running.front_cpu_seconds() - front) / figures.requests * 1e6, 1)
    return (
        LoadResult(
            row.peer, row.model, row.workload, row.conns, figures.rps, figures.p50_us, figures.p99_us,
            row.round, figures.requests, sum(figures.errors.values()), wrong, cpu, front_cpu,
        ),
        figures,
    )  # fmt: skip


def _wait_queue_empty(url: str, bodies: Path) -> None:
    """Send one request: its answer comes after those of all abandoned requests."""
    asker = HttpAsker(url)
    try:
        with bodies.open("rb") as lines:
            asker.post(lines.readline().rstrip())
    finally:
        asker.close()


def _format_progress(row: _Result) -> str:
    match row:
        case LoadResult():
            trouble = f", {row.errors} errors" if row.errors else ""
            trouble += f", WRONG: {row.wrong}" if row.wrong else ""
            return (
                f"{row.workload} with {row.conns} connections: {row.rps:,.0f}/s, "
                f"p50 {row.p50_us / 1e3:.3g} ms, p99 {row.p99_us / 1e3:.3g} ms{trouble}"
            )
        case ServerResult():
            return f"started in {row.start_s} s, {row.rss_mib:.0f} MiB"
        case MeasurementFailure():
            return f"FAILED: {row.error}"


def _plan_from_options(options: argparse.Namespace) -> BenchPlan:
    """Raises ValueError for an unknown name."""
    servers = [_look_up(SERVERS, name) for name in _split_list(options.servers)]
    servers += [_look_up(PROXY_SERVERS, name) for name in _split_list(options.proxies)]
    for text in options.beside:
        name, _, command = text.partition("=")
        if not (name and command):
            raise ValueError(f"--beside takes NAME=COMMAND or NAME=URL, not {text!r}")
        servers.append(ServerDefinition(name, command, options.beside_path))
    if not servers:
        raise ValueError("no server to measure")
    return BenchPlan(
        servers=servers,
        workloads=[_look_up(WORKLOADS, name) for name in _split_list(options.workloads)],
        connections=[int(one) for one in _split_list(options.connections)],
        rounds=options.rounds,
        seconds=options.seconds,
        warm_up=options.warm_up,
        limit=options.limit,
        minutes=options.minutes,
        server_core=options.server_core,
    )


def _look_up(known: dict[str, T], name: str) -> T:
    if name not in known:
        raise ValueError(f"{name!r} is none of {', '.join(known)}")
    return known[name]


def _split_list(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]


def _build_parser() -> argparse.ArgumentParser:
    title, _, more = __doc__.partition("\n\n")
    workloads = "\n".join(f"  {one.name}  {one.title}" for one in WORKLOADS.values())
    cores = sorted(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.bench",
        description=title,
        epilog=f"{more}\nWorkloads:\n{workloads}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument_group("What is measured").add_argument
    add("--workloads", default=",".join(WORKLOADS), metavar="LIST", help="(default: all six)")
    add(
        "--servers",
        default=",".join(DEFAULT_SERVERS),
        metavar="LIST",
        help="echo answers a constant: the limit of the HTTP stack; plain is written by hand: Starlette, "
        "orjson, the library's predict; node is `pilotlight node`; gateway is `pilotlight serve` with one "
        "node on the same core (default: these); apart has it on the core of the load",
    )
    add(
        "--proxies",
        default="",
        metavar="LIST",
        help=f"nodes behind another gateway, on the same core: {', '.join(PROXY_SERVERS)} (default: none)",
    )
    add(
        "--beside",
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="any other server: a command with {port}, {model_dir} and {model} in it, or the URL of one",
    )
    add(
        "--beside-path",
        default="/predict",
        metavar="PATH",
        help="path of --beside commands (default: /predict)",
    )
    add = parser.add_argument_group("How").add_argument
    add("--connections", default="1,16,64", metavar="LIST", help="(default: 1,16,64)")
    add("--rounds", type=int, default=3, metavar="N", help="each starts every server anew (default: 3)")
    add("--seconds", type=float, default=4, metavar="X", help="length of each load (default: 4)")
    add("--warm-up", type=float, default=2, metavar="X", help="seconds of load before the first (default: 2)")
    add(
        "--limit",
        type=float,
        default=120,
        metavar="X",
        help="seconds a server may take to start (default: 120)",
    )
    add("--minutes", type=float, default=90, metavar="X", help="start no server after these (default: 90)")
    add("--client", choices=PROGRAM_NAMES, default="auto", help="what makes the load (default: auto)")
    add(
        "--server-core",
        type=int,
        default=cores[0],
        metavar="N",
        help=f"core of the servers (default: {cores[0]})",
    )
    add(
        "--client-core",
        type=int,
        default=cores[-1],
        metavar="N",
        help=f"core of the load (default: {cores[-1]})",
    )
    add("--folder", type=Path, default=FOLDER, help=f"models, bodies, logs, results (default: {FOLDER})")
    add("--out", type=Path, metavar="FILE", help="where results go (default: results.jsonl in the folder)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
