"""Tables and plots of what a benchmark measured.

    python -m loadtests.bench.report results.jsonl ...  [--images docs/images] [--into docs/performance.md]

reads the files that `python -m loadtests.bench --out` writes, or those of any runner that writes rows of the
same form; several are read as one. It prints tables in markdown: rates, latencies, evenness, ratios, costs,
starts and memory, all of them medians over the rounds. `--images` has plots written there. `--into` puts each
table into a document, between the lines `<!-- bench:NAME -->` and `<!-- end -->`, in place of what stands
there; tables without a place are printed only. The exit code is 1 when an answer was wrong, a request failed,
or a server could not be measured.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from loadtests.bench import plots
from loadtests.bench.results import Results, read
from loadtests.bench.summary import (
    CALM,
    Relation,
    busy,
    is_ours,
    latency_order,
    rate_order,
    relations,
    title,
)


def main() -> int:
    """Print, and write what was asked for; returns the exit code."""
    summary, _, more = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.bench.report",
        description=summary,
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="results as JSON lines")
    parser.add_argument("--images", type=Path, metavar="FOLDER", help="where plots go")
    parser.add_argument("--into", type=Path, metavar="DOCUMENT", help="markdown with places for the tables")
    options = parser.parse_args()
    try:
        found = read(options.files)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    print(text(found))
    if options.images:
        options.images.mkdir(parents=True, exist_ok=True)
        for file in plots.write(found, options.images):
            print(f"wrote {file}", file=sys.stderr)
    if options.into:
        before = options.into.read_text()
        options.into.write_text(insert(before, {name: table(found) for name, table in TABLES.items()}))
    return 1 if trouble(found) else 0


def text(found: Results) -> str:
    """All tables that there is something in, and what went wrong."""
    tables = [f"### {name}\n\n{made}" for name, table in TABLES.items() if (made := table(found))]
    return "\n\n".join([*tables, *trouble(found)])


def insert(document: str, tables: Mapping[str, str]) -> str:
    """The document with each table in its place; a place whose table is empty keeps what it holds."""

    def put(place: re.Match[str]) -> str:
        made = tables.get(place["name"])
        return f"{place['begin']}\n{made}\n{place['end']}" if made else place[0]

    return re.sub(r"(?s)(?P<begin><!-- bench:(?P<name>\S+) -->)\n.*?(?P<end><!-- end -->)", put, document)


def trouble(found: Results) -> list[str]:
    """Wrong answers, failed requests and servers that could not be measured, each once."""
    said = [f"WRONG: {one.peer}, {one.workload}: {one.wrong}" for one in found.loads if one.wrong]
    said += [
        f"{one.errors} of {one.requests} requests failed: {one.peer}, {one.workload}, {one.conns} connections"
        for one in found.loads
        if one.errors
    ]
    said += [f"not measured: {one.peer}, {one.model}: {one.error}" for one in found.failures]
    return list(dict.fromkeys(said))


def rates(found: Results) -> str:
    """Requests per second at 64 connections, or the most below that a workload was loaded with."""
    return _by_workload(
        found,
        rate_order(found),
        lambda peer, workload: _rate(found.median(peer, workload, busy(found, workload), "rps")),
        "requests/s",
    )


def latencies(found: Results) -> str:
    """The median of a request on one connection, in milliseconds."""
    return _by_workload(
        found,
        latency_order(found),
        lambda peer, workload: _millis(found.median(peer, workload, 1, "p50_us")),
        "p50 in ms",
    )


def evenness(found: Results) -> str:
    """p99 over p50 at 16 connections."""

    def cell(peer: str, workload: str) -> str:
        ratios = [
            one.p99_us / one.p50_us
            for one in found.loads
            if (one.peer, one.workload, one.conns) == (peer, workload, CALM) and one.p50_us
        ]
        return f"{sorted(ratios)[len(ratios) // 2]:.1f}" if ratios else ""

    return _by_workload(found, rate_order(found), cell, "p99 / p50")


def ratios(found: Results) -> str:
    """How ours relate to the others, workload by workload."""
    workloads = found.workloads()
    made = [(one, [_relation(one, found, workload) for workload in workloads]) for one in relations(found)]
    rows = [[one.title, *cells] for one, cells in made if any(cells)]
    return _table(["", *workloads], rows) if rows else ""


def processes(found: Results) -> str:
    """Seconds from the start of a process to its first answer, and memory once it was loaded."""
    models = list(dict.fromkeys(one.model for one in found.processes))
    rows = []
    for peer in dict.fromkeys(one.peer for one in found.processes):
        cells = []
        for model in models:
            ones = [one for one in found.processes if (one.peer, one.model) == (peer, model)]
            starts = _middle(one.start_s for one in ones if one.start_s is not None)
            memory = _middle(one.pss_mib for one in ones)
            cells.append(
                "" if memory is None else f"{'?' if starts is None else f'{starts:.1f}'} / {memory:.0f}"
            )
        rows.append([_named(peer), *cells])
    return _table(["s to the first answer / MiB", *models], rows) if rows else ""


def growth(found: Results) -> str:
    """Requests per second by the number of connections, on the first workload."""
    workload = next(iter(found.workloads()), "")
    tried = sorted({one.conns for one in found.loads if one.workload == workload})
    rows = []
    for peer in rate_order(found):
        cells = [_rate(found.median(peer, workload, one, "rps")) for one in tried]
        if any(cells):
            rows.append([_named(peer), *cells])
    head = [f"{workload}, requests/s by connections", *map(str, tried)]
    return _table(head, rows) if rows else ""


def costs(found: Results) -> str:
    """CPU time per request: of all processes of a server, and of the one in front."""
    peers = [
        one for one in found.peers() if any(row.peer == one and row.cpu_us is not None for row in found.loads)
    ]
    rows = []
    for peer in peers:
        cells = []
        for workload in found.workloads():
            most = busy(found, workload)
            whole, front = (found.median(peer, workload, most, what) for what in ("cpu_us", "front_cpu_us"))
            cells.append("" if whole is None else f"{whole:,.0f} / {front or 0:,.0f}")
        rows.append([_named(peer), *cells])
    return _table(["µs of CPU per request, all / in front", *found.workloads()], rows) if rows else ""


TABLES: Mapping[str, Callable[[Results], str]] = {
    "rates": rates,
    "latencies": latencies,
    "evenness": evenness,
    "ratios": ratios,
    "growth": growth,
    "costs": costs,
    "processes": processes,
}


def _by_workload(found: Results, peers: Sequence[str], cell: Callable[[str, str], str], what: str) -> str:
    workloads = found.workloads()
    rows = []
    for peer in peers:
        cells = [cell(peer, workload) for workload in workloads]
        if any(cells):
            rows.append([_named(peer), *(f"**{one}**" if one and is_ours(peer) else one for one in cells)])
    return _table([what, *workloads], rows) if rows else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(one)} |" for one in lines)


def _named(peer: str) -> str:
    return f"**{title(peer)}**" if is_ours(peer) else title(peer)


def _relation(relation: Relation, found: Results, workload: str) -> str:
    value = relation.value(found, workload)
    return "" if value is None else relation.form.format(value)


def _rate(value: float | None) -> str:
    """Three digits: more would be noise."""
    return "" if value is None else f"{float(f'{value:.3g}'):,.0f}"


def _millis(micros: float | None) -> str:
    return "" if micros is None else f"{micros / 1e3:.3g}"


def _middle(values: Iterable[float]) -> float | None:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else None


if __name__ == "__main__":
    sys.exit(main())
