"""What the console costs a server with many versions while predictions come.

    python -m loadtests.bench.console                          about seven minutes
    python -m loadtests.bench.console --turns 1 --seconds 5    a first look
    python -m loadtests.bench.console --into docs/console.md

A server has 1,000 versions: one is deployed, the others are copies of it. 50 of them are awake and are asked
for 500 predictions a second, at a steady rate. Meanwhile Chromium opens the overview; then nobody, one viewer
and ten viewers watch it by turns, each as the page's script does. Without a Chromium there is no first paint.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from loadtests.bench.gateway import PILOTLIGHT, ControlClient
from loadtests.bench.report import insert_tables
from loadtests.bench.reporting.tables import format_table
from loadtests.bench.targets.many_versions import replace_with_copies
from loadtests.bench.targets.processes import exit_on_sigterm, run_group
from loadtests.bench.targets.servers import RunningServer, find_free_port
from loadtests.bench.workloads import WORKLOADS, BenchFiles, train_models
from loadtests.screenshots import CHROMIUM
from serving.names import VersionName

if TYPE_CHECKING:
    from playwright.sync_api import Page

_FOLDER = Path("build/bench")
_WORKLOAD = WORKLOADS["W1"]
_VERSIONS_PER_MODEL = 10
_VIEWERS = (0, 1, 10)
_CLIENTS = "loadtests.bench.load_clients"
# Until all viewers have opened the page, until the load comes, and how long it goes on after a measurement.
_OPEN_SECONDS, _BEGIN_SECONDS, _END_SECONDS = 3.0, 1.5, 1.0
_PAINTS, _PAINT_SECONDS = 7, 2.0
_WAIT_SECONDS = 60.0


@dataclass(frozen=True)
class ConsoleServer:
    """A server with many versions, of which those in `targets` are awake: a path on each line."""

    running: RunningServer
    targets: Path
    bodies: Path
    rate: float

    @contextmanager
    def run_load(self, seconds: float) -> Iterator[subprocess.Popen[str]]:
        """A load from now on; its output is that of `steady_client`."""
        load = (self.running.url, str(self.targets), str(self.bodies), str(self.rate), str(seconds))
        with _run_client("steady_client", *load) as process:
            time.sleep(_BEGIN_SECONDS)
            yield process


@dataclass(frozen=True)
class Watch:
    """The gateway's share of a core, and what predictions took in microseconds, with so many viewers."""

    viewers: int
    cpu: float
    micros: Sequence[float]
    failed: int

    @property
    def p99(self) -> float:
        """In microseconds."""
        return quantiles(self.micros, n=100)[98]


@dataclass(frozen=True)
class Paints:
    """First paints of the overview in milliseconds: of the server's first visit, and of those after it."""

    first_visit: float
    others: Sequence[float]


def main() -> int:
    """Measure and print; 1 when a request failed."""
    options = _build_parser().parse_args()
    exit_on_sigterm()
    material = BenchFiles(options.folder)
    train_models(material, [_WORKLOAD])
    with tempfile.TemporaryDirectory(prefix="pilotlight-bench-") as temporary:
        folder = Path(temporary)
        names = deploy_versions(folder, material, options.versions)
        awake = names[:: max(1, len(names) // options.awake)][: options.awake]
        with run_awake_server(folder, material, awake, options.rate) as server:
            print(f"{len(names):,} versions, {len(awake)} awake", file=sys.stderr, flush=True)
            paints = None if CHROMIUM is None else measure_paints(server)
            watches = list(measure_watches(server, options.turns, options.seconds))
    title = f"{len(names):,} versions, {len(awake)} awake, {options.rate:g} predictions a second"
    tables = {"console-viewers": format_watches(title, watches)}
    if paints is not None:
        tables["console-paint"] = format_paints(paints)
    print("\n\n".join(tables.values()))
    if options.into:
        options.into.write_text(insert_tables(options.into.read_text(), tables))
    return 1 if any(watch.failed for watch in watches) else 0


# ---- the server


def deploy_versions(folder: Path, material: BenchFiles, count: int) -> Sequence[VersionName]:
    """The names of so many copies of a version that a server has deployed."""
    with _run_server(folder) as (_, control):
        control.deploy(material.model_dir(_WORKLOAD.model), "source")
    return replace_with_copies(folder / "state", count // _VERSIONS_PER_MODEL, _VERSIONS_PER_MODEL)


@contextmanager
def run_awake_server(
    folder: Path, material: BenchFiles, names: Sequence[VersionName], rate: float
) -> Iterator[ConsoleServer]:
    """A server on which these versions are awake, with a node each."""
    bodies, targets = material.bodies_file(_WORKLOAD), folder / "targets"
    paths = [f"/v1/{name}:predict" for name in names]
    targets.write_text("\n".join(paths))
    first = json.loads(bodies.read_bytes().partition(b"\n")[0])
    with _run_server(folder, "--idle-timeout", "86400", "--max-nodes", "1") as (running, control):
        _wait_for_pilot(control)
        for path in paths:
            control.call_api("POST", path, first)
        running.wait_until_idle(_WAIT_SECONDS)
        yield ConsoleServer(running, targets, bodies, rate)


@contextmanager
def _run_server(folder: Path, *flags: str) -> Iterator[tuple[RunningServer, ControlClient]]:
    port = find_free_port()
    command = [*PILOTLIGHT, "serve", "--port", str(port), "--state-dir", str(folder / "state"), *flags]
    with run_group(command, {}, None, folder / "log") as group:
        control = ControlClient(port)
        control.wait_until_ready(group.process.poll)
        yield RunningServer(f"http://127.0.0.1:{port}", 0.0, group, (group.process.pid,)), control


def _wait_for_pilot(control: ControlClient) -> None:
    end = time.monotonic() + _WAIT_SECONDS
    while not all(pilot["state"] == "lit" for pilot in control.call_api("GET", "/nodes")["pilots"]):
        if time.monotonic() > end:
            raise SystemExit(f"after {_WAIT_SECONDS:g} s the pilot is still not ready")
        time.sleep(0.1)


# ---- what is measured


def measure_paints(server: ConsoleServer) -> Paints:
    """In a browser that has nothing of the page yet, each time."""
    from playwright.sync_api import sync_playwright

    found = []
    with sync_playwright() as playwright, server.run_load(_PAINTS * _PAINT_SECONDS + _WAIT_SECONDS):
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        browser.new_page().goto("about:blank")
        for _ in range(_PAINTS + 1):
            context = browser.new_context()
            page = context.new_page()
            page.goto(f"{server.running.url}/console/")
            found.append(_read_first_paint(page))
            context.close()
            time.sleep(_PAINT_SECONDS)
        browser.close()
    print(f"first paint: {', '.join(f'{one:.0f}' for one in found)} ms", file=sys.stderr, flush=True)
    return Paints(found[0], found[1:])


def _read_first_paint(page: Page) -> float:
    """In milliseconds from the beginning of the navigation."""
    script = "performance.getEntriesByName('first-paint').map(one => one.startTime)"
    while not (entries := page.evaluate(script)):
        page.wait_for_timeout(20)
    return float(entries[0])


def measure_watches(server: ConsoleServer, turns: int, seconds: float) -> Iterator[Watch]:
    """Nobody, one viewer and ten take turns, so that what disturbs the machine disturbs all alike."""
    for turn in range(turns):
        for viewers in _VIEWERS:
            watch = measure_watch(server, viewers, seconds)
            print(
                f"turn {turn + 1} of {turns}, {viewers} viewers: {100 * watch.cpu:.1f} % of a core, "
                f"p99 {watch.p99 / 1e3:.2f} ms, {watch.failed} failed",
                file=sys.stderr,
                flush=True,
            )
            yield watch


def measure_watch(server: ConsoleServer, viewers: int, seconds: float) -> Watch:
    whole = _BEGIN_SECONDS + seconds + _END_SECONDS
    # Their browsers are elsewhere: what they compute themselves is not to be seen in what predictions take.
    with _run_client(
        "page_viewers", server.running.url, str(viewers), str(_OPEN_SECONDS + whole), niceness=19
    ) as watching:
        time.sleep(_OPEN_SECONDS)
        with server.run_load(whole - _BEGIN_SECONDS) as load:
            before, begin = server.running.front_cpu_seconds(), time.monotonic()
            time.sleep(seconds)
            used = server.running.front_cpu_seconds() - before
            cpu = used / (time.monotonic() - begin)
            found = _read_output(load)
        _read_output(watching)
    return Watch(viewers, cpu, found["micros"], found["errors"])


@contextmanager
def _run_client(name: str, *arguments: str, niceness: int = 0) -> Iterator[subprocess.Popen[str]]:
    command = ["nice", "-n", str(niceness), sys.executable, "-m", f"{_CLIENTS}.{name}", *arguments]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _read_output(process: subprocess.Popen[str]) -> Any:
    """Raises SystemExit when a client has failed."""
    out, _ = process.communicate(timeout=_WAIT_SECONDS)
    if process.returncode:
        raise SystemExit("a client has failed")
    return json.loads(out)


# ---- tables


def format_watches(title: str, watches: Sequence[Watch]) -> str:
    """By the number of viewers; medians over the turns, of what each compares in its own turn."""
    alone, *watched = ([one for one in watches if one.viewers == viewers] for viewers in _VIEWERS)

    def compare(compute: Callable[[Watch, Watch], float], form: str) -> Iterator[str]:
        for ones in watched:
            yield form.format(median(compute(one, other) for one, other in zip(ones, alone, strict=True)))

    def tell(compute: Callable[[Watch], float], form: str) -> Iterator[str]:
        for ones in (alone, *watched):
            yield form.format(median(compute(one) for one in ones))

    rows = [
        ["CPU time of the gateway, share of a core", *tell(lambda one: 100 * one.cpu, "{:.1f} %")],
        [
            "more than without viewers",
            "",
            *compare(lambda one, other: 100 * (one.cpu - other.cpu), "{:.1f} %"),
        ],
        ["p50 of predictions in ms", *tell(lambda one: median(one.micros) / 1e3, "{:.2f}")],
        ["p99 of predictions in ms", *tell(lambda one: one.p99 / 1e3, "{:.2f}")],
        ["p99 beside that without viewers", "", *compare(lambda one, other: one.p99 / other.p99, "{:.2f}")],
    ]
    return format_table([title, "no viewer", "1 viewer", "10 viewers"], rows)


def format_paints(paints: Paints) -> str:
    rows = [
        ["of the server's first visit", f"{paints.first_visit:.0f}"],
        [f"later, median of {len(paints.others)}", f"{median(paints.others):.0f}"],
        ["later, the slowest", f"{max(paints.others):.0f}"],
    ]
    return format_table(["first paint of the overview in Chromium", "ms"], rows)


def _build_parser() -> argparse.ArgumentParser:
    title, _, more = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.bench.console",
        description=title,
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--versions", type=int, default=1000, metavar="N", help="how many there are (default: 1000)")
    add("--awake", type=int, default=50, metavar="N", help="how many have a node (default: 50)")
    add("--rate", type=float, default=500, metavar="X", help="predictions a second (default: 500)")
    add("--turns", type=int, default=9, metavar="N", help="of each number of viewers (default: 9)")
    add("--seconds", type=float, default=8, metavar="X", help="length of each (default: 8)")
    add("--folder", type=Path, default=_FOLDER, help=f"the model and its bodies (default: {_FOLDER})")
    add("--into", type=Path, metavar="DOCUMENT", help="markdown with places for the tables")
    return parser


if __name__ == "__main__":
    sys.exit(main())
