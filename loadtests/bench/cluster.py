"""What several servers on one database cost: changes seen elsewhere, hops, wake-ups, the sum of two servers.

    python -m loadtests.bench.cluster postgresql://USER@HOST/DATABASE              about six minutes
    python -m loadtests.bench.cluster DATABASE --turns 3 --seconds 2               a first look
    python -m loadtests.bench.cluster DATABASE --into docs/cluster.md

DATABASE is an empty one. Three servers share it; a fourth has a state of its own, and does the same beside
them, by turns, so that what disturbs the machine disturbs all alike. What two servers do together is told by
the processor time of a request, which no generator of load takes part in: load goes to two servers that both
own the version, and to the fourth.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median, quantiles

from loadtests.bench.gateway import PILOTLIGHT, ControlClient
from loadtests.bench.load_clients.answers import HttpAsker
from loadtests.bench.load_clients.programs import LoadProgram, choose_program
from loadtests.bench.report import insert_tables
from loadtests.bench.reporting.results import LoadFigures
from loadtests.bench.reporting.tables import format_table
from loadtests.bench.targets.processes import ProcessGroup, exit_on_sigterm, run_group
from loadtests.bench.targets.servers import find_free_port
from loadtests.bench.workloads import WORKLOADS, BenchFiles, train_models

_FOLDER = Path("build/bench")
_WORKLOAD = WORKLOADS["W1"]
_SERVERS = 3
_MODEL = "m"
_MODEL_NAME = f"projects/p/models/{_MODEL}"
_PREDICT = f"/v1/{_MODEL_NAME}:predict"
_WHY = f"/why/{_MODEL_NAME}/versions/v1"
# Of a version that is to sleep between two requests, and of one that is to keep its owners between two loads.
_IDLE_SECONDS, _LONG_IDLE_SECONDS = 1.0, 600.0
_WAIT_SECONDS = 60.0
# A change is looked for with pauses of this length, which is what its time may be too much.
_LOOK_SECONDS = 0.0005
_CONNECTIONS = 32
_WIDEN_SECONDS = 2.0


@dataclass(frozen=True)
class Plan:
    """How many turns, changes and predictions in each; `seconds` is the length of a load."""

    turns: int = 20
    changes: int = 20
    requests: int = 500
    seconds: float = 3.0


@dataclass(frozen=True)
class ClusterServer:
    """One of the servers on the database, or the one that has a state of its own."""

    url: str
    control: ControlClient
    group: ProcessGroup

    def find_name(self) -> str:
        """What the others call it."""
        return str(self.control.call_api("GET", "/nodes")["server"])

    def find_owners(self) -> Sequence[str]:
        found: Sequence[str] = self.control.call_api("GET", _WHY)["owners"]
        return found

    def is_asleep(self) -> bool:
        return not self.control.list_node_pids()

    def measure_cpu(self) -> float:
        """Seconds of processor time that its processes have used so far."""
        return sum(self.group.measure_usage().cpu.values())


@dataclass
class RequestTimes:
    """Seconds of predictions on a kept connection, of first ones of a sleeping version, and of CPU."""

    warm: list[float] = field(default_factory=list)
    woken: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


@dataclass
class ClusterFigures:
    """`changes`: seconds until one was seen on each other server. `hop`: asked of one that is no owner."""

    changes: list[float] = field(default_factory=list)
    alone: RequestTimes = field(default_factory=RequestTimes)
    owner: RequestTimes = field(default_factory=RequestTimes)
    hop: RequestTimes = field(default_factory=RequestTimes)

    @property
    def change_p99(self) -> float:
        return quantiles(self.changes, n=100)[98]

    @property
    def hop_seconds(self) -> float:
        return median(self.hop.warm) - median(self.owner.warm)

    @property
    def share_of_sum(self) -> float:
        """What two servers do, as a part of twice what one does: a median over the turns."""
        turns = zip(self.alone.cpu, self.owner.cpu, strict=True)
        return median(one / each_of_two for one, each_of_two in turns)


def main() -> int:
    """Measure and print."""
    options = _build_parser().parse_args()
    exit_on_sigterm()
    plan = Plan(options.turns, options.changes, options.requests, options.seconds)
    figures = measure_cluster(options.database, BenchFiles(options.folder), plan)
    tables = {"cluster-costs": format_costs(figures), "cluster-sum": format_sum(figures)}
    print("\n\n".join(tables.values()))
    if options.into:
        options.into.write_text(insert_tables(options.into.read_text(), tables))
    return 0


def measure_cluster(database: str, material: BenchFiles, plan: Plan) -> ClusterFigures:
    """Raises SystemExit when something fails that must not."""
    train_models(material, [_WORKLOAD])
    figures = ClusterFigures()
    with tempfile.TemporaryDirectory(prefix="pilotlight-bench-") as temporary:
        with run_servers(Path(temporary), database) as (alone, servers):
            measure_turns(alone, servers, material, figures, plan)
        with run_servers(Path(temporary), database, on_one_core_each=True) as (alone, servers):
            measure_request_cpu(alone, servers, material, figures, plan)
    return figures


# ---- the servers


@contextmanager
def run_servers(
    folder: Path, database: str, *, on_one_core_each: bool = False
) -> Iterator[tuple[ClusterServer, Sequence[ClusterServer]]]:
    """The server that is alone, and those on the database; each has the state of the block before, if any.

    With a core each there are two on the database.
    """
    count = 2 if on_one_core_each else _SERVERS
    with ExitStack() as stack:

        def start(name: str, number: int, environment: Mapping[str, str]) -> ClusterServer:
            port = find_free_port()
            command = [*PILOTLIGHT, "serve", "--port", str(port), "--state-dir", str(folder / name)]
            command += ["--idle-timeout", str(_LONG_IDLE_SECONDS if on_one_core_each else _IDLE_SECONDS)]
            core = number if on_one_core_each else None
            group = stack.enter_context(run_group(command, environment, core, folder / f"{name}.log"))
            control = ControlClient(port)
            control.wait_until_ready(group.process.poll)
            return ClusterServer(f"http://127.0.0.1:{port}", control, group)

        alone = start("alone", 0, {})
        servers = [start(f"s{number}", number, {"PILOTLIGHT_STATE": database}) for number in range(count)]
        for server in (alone, *servers):
            wait_until(partial(_are_pilots_ready, server), "the pilots are ready")
        yield alone, servers


def _are_pilots_ready(server: ClusterServer) -> bool:
    return all(pilot["state"] == "lit" for pilot in server.control.call_api("GET", "/nodes")["pilots"])


def wait_until(reached: Callable[[], bool], what: str) -> None:
    """Raises SystemExit if it takes too long."""
    end = time.monotonic() + _WAIT_SECONDS
    while not reached():
        if time.monotonic() > end:
            raise SystemExit(f"after {_WAIT_SECONDS:g} s still not: {what}")
        time.sleep(0.02)


def find_owner_and_peer(servers: Sequence[ClusterServer]) -> tuple[ClusterServer, ClusterServer]:
    """The owner of the version, and one that is none, once all know each other."""
    names = {server.find_name(): server for server in servers}

    def know_each_other() -> bool:
        return all(_count_reached_peers(server) == len(servers) - 1 for server in servers)

    wait_until(know_each_other, "the servers know each other")
    (name,) = servers[0].find_owners()
    return names[name], next(server for other, server in names.items() if other != name)


def _count_reached_peers(server: ClusterServer) -> int:
    return sum(one["reached"] is True for one in server.control.call_api("GET", "/servers")["servers"])


# ---- what is measured


def measure_turns(
    alone: ClusterServer,
    servers: Sequence[ClusterServer],
    material: BenchFiles,
    figures: ClusterFigures,
    plan: Plan,
) -> None:
    """Changes, predictions and wake-ups, by turns."""
    for server in (alone, servers[0]):
        server.control.deploy(material.model_dir(_WORKLOAD.model), _MODEL, {"minNodes": 0})
    owner, other = find_owner_and_peer(servers)
    asked = ((alone, alone, figures.alone), (owner, owner, figures.owner), (other, owner, figures.hop))
    body = material.bodies_file(_WORKLOAD).read_bytes().partition(b"\n")[0]
    for turn in range(plan.turns):
        figures.changes += measure_changes(servers, plan.changes)
        for server, _, requests in asked:
            requests.warm += measure_predictions(server, body, plan.requests)
        for server, home, requests in asked:
            wait_until(home.is_asleep, "the version sleeps")
            requests.woken += measure_predictions(server, body, 1, warm_up=0)
        print(f"turn {turn + 1} of {plan.turns}", file=sys.stderr, flush=True)


def measure_changes(servers: Sequence[ClusterServer], count: int) -> Iterator[float]:
    """Seconds from the answer to a change until another server tells of it, for each of the others."""
    with ThreadPoolExecutor(len(servers) - 1) as pool:
        for number in range(count):
            text = f"{time.time()} {number}"
            change = f"/v1/{_MODEL_NAME}?updateMask=description"
            servers[0].control.call_api("PATCH", change, {"description": text})
            changed_at = time.perf_counter()
            seen_at = list(pool.map(partial(_wait_until_description_is, text=text), servers[1:]))
            yield from (moment - changed_at for moment in seen_at)


def _wait_until_description_is(server: ClusterServer, text: str) -> float:
    while server.control.call_api("GET", f"/v1/{_MODEL_NAME}").get("description") != text:
        time.sleep(_LOOK_SECONDS)
    return time.perf_counter()


def measure_predictions(server: ClusterServer, body: bytes, count: int, warm_up: int = 20) -> Sequence[float]:
    """Seconds of requests one after the other. Raises SystemExit for an answer that is none."""
    asker = HttpAsker(f"{server.url}{_PREDICT}")
    found = []
    try:
        for _ in range(warm_up + count):
            begin = time.perf_counter()
            status, answer = asker.post(body)
            found.append(time.perf_counter() - begin)
            if status != 200:
                raise SystemExit(f"a prediction failed: {status} {answer[:300]!r}")
    finally:
        asker.close()
    return found[warm_up:]


def measure_request_cpu(
    alone: ClusterServer,
    servers: Sequence[ClusterServer],
    material: BenchFiles,
    figures: ClusterFigures,
    plan: Plan,
) -> None:
    """Processor time of a request at the one server and at two that both own the version, by turns."""
    bodies, program = material.bodies_file(_WORKLOAD), choose_program("auto", None)
    for turn in range(plan.turns):
        load_until_all_own(servers, program, bodies)
        figures.alone.cpu.append(load_servers((alone,), program, bodies, plan.seconds))
        figures.owner.cpu.append(load_servers(servers, program, bodies, plan.seconds))
        print(f"load, turn {turn + 1} of {plan.turns}", file=sys.stderr, flush=True)


def load_until_all_own(servers: Sequence[ClusterServer], program: LoadProgram, bodies: Path) -> None:
    """Load it until all the servers own it."""
    end = time.monotonic() + _WAIT_SECONDS
    while len(servers[0].find_owners()) < len(servers):
        if time.monotonic() > end:
            raise SystemExit("the load does not give the version a second owner")
        load_servers(servers, program, bodies, _WIDEN_SECONDS)


def load_servers(
    servers: Sequence[ClusterServer], program: LoadProgram, bodies: Path, seconds: float
) -> float:
    """Seconds of processor time per request. Raises SystemExit if one failed."""

    def load(server: ClusterServer) -> LoadFigures:
        return program.run_load(f"{server.url}{_PREDICT}", bodies, _CONNECTIONS, seconds)

    before = sum(server.measure_cpu() for server in servers)
    with ThreadPoolExecutor(len(servers)) as pool:
        loads = list(pool.map(load, servers))
    used = sum(server.measure_cpu() for server in servers) - before
    for one in loads:
        if one.errors:
            raise SystemExit(f"requests failed: {one.errors}")
    return used / sum(one.requests for one in loads)


# ---- tables


def format_costs(figures: ClusterFigures) -> str:
    alone, owner, hop = figures.alone, figures.owner, figures.hop
    rows = [
        ["a change is seen on another server, p50", f"{median(figures.changes) * 1e3:.1f} ms"],
        ["the same, p99", f"{figures.change_p99 * 1e3:.1f} ms"],
        ["a prediction at a server without others, p50", f"{median(alone.warm) * 1e6:.0f} µs"],
        ["at its owner", f"{median(owner.warm) * 1e6:.0f} µs"],
        ["through another server", f"{median(hop.warm) * 1e6:.0f} µs"],
        ["one hop", f"{figures.hop_seconds * 1e6:.0f} µs"],
        ["a wake-up at a server without others, median", f"{median(alone.woken) * 1e3:.1f} ms"],
        ["at its owner", f"{median(owner.woken) * 1e3:.1f} ms"],
        ["through another server", f"{median(hop.woken) * 1e3:.1f} ms"],
    ]
    return format_table([f"{_SERVERS} servers, medians of {len(hop.woken)} turns", ""], rows)


def format_sum(figures: ClusterFigures) -> str:
    alone, two = median(figures.alone.cpu), median(figures.owner.cpu)
    rows = [
        ["processor time of a request, a server without others", f"{alone * 1e6:.0f} µs"],
        ["two servers on a core each that both own the version", f"{two * 1e6:.0f} µs"],
        ["what two do, as a part of twice what one does, median", f"{figures.share_of_sum:.2f}"],
    ]
    return format_table([f"{_CONNECTIONS} connections to each, {len(figures.owner.cpu)} turns", ""], rows)


def _build_parser() -> argparse.ArgumentParser:
    title, _, more = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.bench.cluster",
        description=title,
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("database", metavar="DATABASE", help="the address of an empty PostgreSQL database")
    plan = Plan()
    add("--turns", type=int, default=plan.turns, metavar="N", help="of everything (default: %(default)s)")
    add("--changes", type=int, default=plan.changes, metavar="N", help="in a turn (default: %(default)s)")
    add("--requests", type=int, default=plan.requests, metavar="N", help="in a turn (default: %(default)s)")
    add("--seconds", type=float, default=plan.seconds, metavar="X", help="of a load (default: %(default)g)")
    add("--folder", type=Path, default=_FOLDER, help=f"the model and its bodies (default: {_FOLDER})")
    add("--into", type=Path, metavar="DOCUMENT", help="markdown with places for the tables")
    return parser


if __name__ == "__main__":
    sys.exit(main())
