"""What was measured as tables in markdown; a table that there is nothing in is empty."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from loadtests.bench.results import Results
from loadtests.bench.summary import (
    CALM,
    FRONTS,
    GATEWAY,
    NODE,
    Relation,
    busy,
    is_ours,
    latency_order,
    rate_order,
    relations,
    title,
)


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
    return table(["", *workloads], rows) if rows else ""


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
    return table(["s to the first answer / MiB", *models], rows) if rows else ""


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
    return table(head, rows) if rows else ""


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
    return table(["µs of CPU per request, all / in front", *found.workloads()], rows) if rows else ""


def in_front(found: Results) -> str:
    """What stands before a node: rate and latency beside the node's own, and its own CPU time per request.

    Empty when no other gateway than ours was measured.
    """
    rows = [
        row
        for workload in found.workloads()
        for peer in (NODE, GATEWAY, *FRONTS)
        if (row := _beside_node(found, workload, peer))
    ]
    head = ["", "", "requests/s", "of node", "p50 ms", "added µs", "CPU µs in front", "so at most /s"]
    return table(head, rows) if any(one in found.peers() for one in FRONTS) else ""


def _beside_node(found: Results, workload: str, peer: str) -> list[str]:
    """A row of the table above; empty when this server or the node was not measured."""
    most = busy(found, workload)
    rate, of = found.median(peer, workload, most, "rps"), found.median(NODE, workload, most, "rps")
    p50, least = found.median(peer, workload, 1, "p50_us"), found.median(NODE, workload, 1, "p50_us")
    if not (rate and of and p50 and least):
        return []
    row = [workload, _named(peer), _rate(rate)]
    if peer == NODE:
        return [*row, "", _millis(p50), "", "", ""]
    front = found.median(peer, workload, most, "front_cpu_us")
    limit = [f"{front:,.0f}", _rate(1e6 / front)] if front else ["", ""]
    return [*row, f"{rate / of:.2f}", _millis(p50), f"{p50 - least:,.0f}", *limit]


TABLES: Mapping[str, Callable[[Results], str]] = {
    "rates": rates,
    "latencies": latencies,
    "evenness": evenness,
    "ratios": ratios,
    "growth": growth,
    "in-front": in_front,
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
    return table([what, *workloads], rows) if rows else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in markdown, numbers to the right."""
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
