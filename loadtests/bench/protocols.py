"""Measures one tensor in every protocol that a server speaks, on one core, the load on another.

    python -m loadtests.bench.protocols                              W6 and W1, node and gateway, some minutes
    python -m loadtests.bench.protocols --workloads W6 --servers node --turns 3
    python -m loadtests.bench.protocols --into docs/performance.md   updates the tables in that document

The server is the same process all the time, and is loaded in turns of some seconds, one protocol after the
other, so that a noisy machine disturbs all alike; what is printed are medians over the turns, those of the
ratios to AI Platform's JSON turn by turn among them. Each protocol has to answer as the library predicts.
HTTP is loaded with wrk, which must be there; gRPC with a client in Python, which cannot saturate one with
small requests, and of those the CPU time of the server says more than their rate.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import grpc
import numpy as np

from loadtests.bench.load_clients import grpc_client
from loadtests.bench.load_clients.answers import ExpectedAnswers, find_difference, read_expected
from loadtests.bench.load_clients.payload_formats import (
    PAYLOAD_FORMATS,
    PayloadFormat,
    read_framed,
    write_framed,
)
from loadtests.bench.load_clients.programs import LoadProgram, choose_program, parse_json_line
from loadtests.bench.report import insert_tables
from loadtests.bench.reporting.results import LoadFigures
from loadtests.bench.reporting.tables import format_table
from loadtests.bench.targets.processes import exit_on_sigterm
from loadtests.bench.targets.servers import SERVERS, RunningServer, find_free_port, run_server
from loadtests.bench.workloads import WORKLOADS, BenchFiles, Workload, train_models

_FOLDER = Path("build/bench")
_START_SECONDS, _REST_SECONDS = 120.0, 20.0
_TIMEOUT_SECONDS = 60
_CHECKED = 8
_SERVERS, _WORKLOADS = ("node", "gateway"), ("W6", "W1")
# What is measured: the name of the model's input, the type of its numbers, connections.
_INPUTS = {"W1": ("predict", "float64"), "W6": ("image", "float32")}
_CONNECTIONS = {"W1": 16, "W6": 4}
_BASE_PROTOCOL = "AI Platform JSON"


@dataclass(frozen=True)
class TurnResult:
    """One load: its figures, and the CPU time of the server per request in microseconds."""

    figures: LoadFigures
    cpu_us: float


def main() -> int:
    """Measure and print; 1 when an answer was wrong or a request failed."""
    options = _build_parser().parse_args()
    exit_on_sigterm()
    if shutil.which("wrk") is None:
        print("wrk is not installed", file=sys.stderr)
        return 2
    cores = sorted(os.sched_getaffinity(0))
    material = BenchFiles(options.folder)
    workloads = [WORKLOADS[name] for name in options.workloads]
    formats = [
        PAYLOAD_FORMATS[name] for name in dict.fromkeys((_BASE_PROTOCOL, *options.ways))
    ]  # what the others are compared with
    train_models(material, workloads)
    (material.folder / "logs").mkdir(exist_ok=True)
    tables, failed = {}, False
    for workload in workloads:
        made: dict[str, Mapping[str, Sequence[TurnResult]]] = {}
        for name in options.servers:
            over_grpc = any(payload_format.is_grpc for payload_format in formats)
            with _run_server(name, workload, material, cores[0], over_grpc=over_grpc) as server:
                made[name] = server.measure_formats(formats, options.turns, options.seconds, core=cores[-1])
        failed |= any(
            one.figures.errors for by_format in made.values() for turns in by_format.values() for one in turns
        )
        tables[f"protocols-{workload.name}"] = text = _format_table(workload, made)
        print(f"### {workload.name}, {workload.title}\n\n{text}\n", flush=True)
    if options.into:
        options.into.write_text(insert_tables(options.into.read_text(), tables))
    return 1 if failed else 0


@dataclass(frozen=True)
class _ProtocolServer:
    """A running server, with the bodies of a workload in every protocol."""

    name: str
    running: RunningServer
    grpc_port: int
    workload: Workload
    material: BenchFiles

    def measure_formats(
        self, formats: Sequence[PayloadFormat], turns: int, seconds: float, *, core: int
    ) -> Mapping[str, Sequence[TurnResult]]:
        """The loads of each format, turn by turn. Raises SystemExit for a wrong answer."""
        self.running.wait_until_idle(_REST_SECONDS)
        expect = read_expected(
            self.material.bodies_file(self.workload), self.material.answers_file(self.workload)
        )
        files = {
            payload_format.name: self._prepare_bodies(payload_format, expect) for payload_format in formats
        }
        for payload_format in formats:  # the first load of each warms it up
            self._run_turn(payload_format, files[payload_format.name], seconds, core)
        made: dict[str, list[TurnResult]] = {payload_format.name: [] for payload_format in formats}
        for _ in range(turns):
            for payload_format in formats:
                made[payload_format.name].append(
                    self._run_turn(payload_format, files[payload_format.name], seconds, core)
                )
                last = made[payload_format.name][-1]
                print(
                    f"  {self.workload.name}, {self.name}, {payload_format.name}: {last.figures.rps:,.0f}/s, "
                    f"{last.cpu_us:,.0f} µs of CPU",
                    file=sys.stderr,
                    flush=True,
                )
        return made

    def _prepare_bodies(self, payload_format: PayloadFormat, expect: ExpectedAnswers) -> Path:
        """The file with the bodies in a format, once the first answers are right."""
        name, kind = _INPUTS[self.workload.name]
        rows = [np.array(json.loads(body)["instances"], kind) for body in expect.bodies]
        for given, answer in list(zip(rows, expect.answers, strict=True))[:_CHECKED]:
            if said := find_difference(
                payload_format.decode(*self._send_once(payload_format, payload_format.encode(name, given))),
                answer,
            ):
                raise SystemExit(f"{self.workload.name}, {self.name}, {payload_format.name}: {said}")
        file = self.material.folder / "bodies" / f"{self.workload.name}.{payload_format.name}.framed"
        write_framed((payload_format.encode(name, given) for given in rows), file)
        return file

    def _send_once(self, payload_format: PayloadFormat, body: bytes) -> tuple[bytes, Mapping[str, str]]:
        if payload_format.is_grpc:
            with grpc.insecure_channel(self._grpc_address, options=grpc_client.OPTIONS) as channel:
                return channel.unary_unary(f"/{payload_format.target}")(body, timeout=_TIMEOUT_SECONDS), {}
        connection = http.client.HTTPConnection(self._address, timeout=_TIMEOUT_SECONDS)
        try:
            connection.request(
                "POST",
                payload_format.target,
                body,
                {"content-type": "application/json", **payload_format.headers_of(body)},
            )
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            raise SystemExit(f"{self.name}, {payload_format.name}: {answer.status} {content[:300]!r}")
        return content, {name.lower(): value for name, value in answer.getheaders()}

    def _run_turn(self, payload_format: PayloadFormat, bodies: Path, seconds: float, core: int) -> TurnResult:
        connections = _CONNECTIONS[self.workload.name]
        before = self._cpu_seconds()
        if payload_format.is_grpc:
            client = LoadProgram("grpc", grpc_client.grpc_load_command, parse_json_line, core)
            figures = client.run_load(
                f"{self._grpc_address}/{payload_format.target}", bodies, connections, seconds
            )
        else:
            url = f"http://{self._address}{payload_format.target}"
            first = next(read_framed(bodies))
            headers = "\n".join(
                f"{name}: {value}" for name, value in payload_format.headers_of(first).items()
            )
            figures = choose_program("wrk", core).run_load(
                url, bodies, connections, seconds, {"BENCH_HEADERS": headers}
            )
        return TurnResult(figures, round((self._cpu_seconds() - before) / figures.requests * 1e6, 1))

    def _cpu_seconds(self) -> float:
        """CPU seconds that all its processes have used."""
        usage = self.running.measure_usage()
        return 0.0 if usage is None else sum(usage.cpu.values())

    @property
    def _address(self) -> str:
        return urlsplit(self.running.url).netloc

    @property
    def _grpc_address(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"


@contextmanager
def _run_server(
    name: str, workload: Workload, material: BenchFiles, core: int, *, over_grpc: bool
) -> Iterator[_ProtocolServer]:
    """A server on a core, with gRPC if asked for."""
    port = find_free_port()
    options = f" --grpc-port {port}" if over_grpc else ""
    options += " --default-project p" if name == "gateway" else ""
    server = replace(SERVERS[name], command=SERVERS[name].command + options)
    first = material.bodies_file(workload).read_bytes().partition(b"\n")[0]
    with run_server(
        server,
        "m",
        material.model_dir(workload.model),
        first,
        core=core,
        limit=_START_SECONDS,
        logs=material.folder / "logs",
    ) as running:
        yield _ProtocolServer(name, running, port, workload, material)


def _format_table(workload: Workload, made: Mapping[str, Mapping[str, Sequence[TurnResult]]]) -> str:
    """Rates, ratios and costs of each format, server by server."""
    head = [f"{workload.name}, {_CONNECTIONS[workload.name]} connections"]
    for server in made:
        head += [f"{server}: requests/s", "of JSON's", "p50 in ms", "µs of CPU"]
    rows = []
    for payload_format in PAYLOAD_FORMATS:
        cells = [payload_format]
        for formats in made.values():
            cells += _format_cells(formats.get(payload_format, ()), formats.get(_BASE_PROTOCOL, ()))
        if any(cells[1:]):
            rows.append(cells)
    return format_table(head, rows)


def _format_cells(turns: Sequence[TurnResult], base: Sequence[TurnResult]) -> list[str]:
    if not turns:
        return [""] * 4
    rates = [one.figures.rps for one in turns]
    ratios = [rate / first.figures.rps for rate, first in zip(rates, base, strict=False)]
    return [
        f"{median(rates):,.0f}",
        f"{median(ratios):.2f}" if ratios else "",
        f"{median(one.figures.p50_us for one in turns) / 1e3:.3g}",
        f"{median(one.cpu_us for one in turns):,.0f}",
    ]


def _build_parser() -> argparse.ArgumentParser:
    title, _, more = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.bench.protocols",
        description=title,
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    for flag, names in (
        ("--workloads", _WORKLOADS),
        ("--servers", _SERVERS),
        ("--ways", (*PAYLOAD_FORMATS,)),
    ):
        add(
            flag,
            type=_list_parser(names),
            default=names,
            metavar="LIST",
            help=f"(default: {','.join(names)})",
        )
    add("--turns", type=int, default=5, metavar="N", help="loads of each protocol (default: 5)")
    add("--seconds", type=float, default=2, metavar="X", help="length of each (default: 2)")
    add("--folder", type=Path, default=_FOLDER, help=f"models, bodies and logs (default: {_FOLDER})")
    add("--into", type=Path, metavar="DOCUMENT", help="markdown with places for the tables")
    return parser


def _list_parser(names: Sequence[str]) -> Callable[[str], list[str]]:
    """Parses a comma-separated list of some of these names."""

    def parse_list(text: str) -> list[str]:
        given = text.split(",")
        if unknown := [name for name in given if name not in names]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not among {', '.join(names)}")
        return given

    return parse_list


if __name__ == "__main__":
    sys.exit(main())
