"""Results as markdown tables; a table without rows is empty."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from loadtests.bench.reporting.results import BenchResults
from loadtests.bench.reporting.summary import (
    FEW_CONNECTIONS,
    FRONTS,
    GATEWAY,
    NODE,
    RatioDefinition,
    busy_connections,
    is_ours,
    latency_order,
    list_ratios,
    rate_order,
    title_of,
)


def rates_table(found: BenchResults) -> str:
    """Requests per second at 64 connections, or the most below that a workload was loaded with."""
    return _workload_table(
        found,
        rate_order(found),
        lambda peer, workload: _format_rate(
            found.median_of(peer, workload, busy_connections(found, workload), "rps")
        ),
        "requests/s",
    )


def latencies_table(found: BenchResults) -> str:
    """The median of a request on one connection, in milliseconds."""
    return _workload_table(
        found,
        latency_order(found),
        lambda peer, workload: _format_millis(found.median_of(peer, workload, 1, "p50_us")),
        "p50 in ms",
    )


def evenness_table(found: BenchResults) -> str:
    """p99 over p50 at 16 connections."""

    def format_cell(peer: str, workload: str) -> str:
        ratios = [
            one.p99_us / one.p50_us
            for one in found.loads
            if (one.peer, one.workload, one.conns) == (peer, workload, FEW_CONNECTIONS) and one.p50_us
        ]
        return f"{sorted(ratios)[len(ratios) // 2]:.1f}" if ratios else ""

    return _workload_table(found, rate_order(found), format_cell, "p99 / p50")


def ratios_table(found: BenchResults) -> str:
    """Ratios of ours to others, workload by workload."""
    workloads = found.list_workloads()
    made = [
        (one, [_format_ratio(one, found, workload) for workload in workloads]) for one in list_ratios(found)
    ]
    rows = [[one.title, *cells] for one, cells in made if any(cells)]
    return format_table(["", *workloads], rows) if rows else ""


def processes_table(found: BenchResults) -> str:
    """Seconds from the start of a process to its first answer, and memory once it was loaded."""
    models = list(dict.fromkeys(one.model for one in found.processes))
    rows = []
    for peer in dict.fromkeys(one.peer for one in found.processes):
        cells = []
        for model in models:
            ones = [one for one in found.processes if (one.peer, one.model) == (peer, model)]
            starts = _upper_median(one.start_s for one in ones if one.start_s is not None)
            memory = _upper_median(one.pss_mib for one in ones)
            cells.append(
                "" if memory is None else f"{'?' if starts is None else f'{starts:.1f}'} / {memory:.0f}"
            )
        rows.append([_format_peer(peer), *cells])
    return format_table(["s to the first answer / MiB", *models], rows) if rows else ""


def rates_by_connections_table(found: BenchResults) -> str:
    """Requests per second by the number of connections, on the first workload."""
    workload = next(iter(found.list_workloads()), "")
    tried = sorted({one.conns for one in found.loads if one.workload == workload})
    rows = []
    for peer in rate_order(found):
        cells = [_format_rate(found.median_of(peer, workload, one, "rps")) for one in tried]
        if any(cells):
            rows.append([_format_peer(peer), *cells])
    head = [f"{workload}, requests/s by connections", *map(str, tried)]
    return format_table(head, rows) if rows else ""


def costs_table(found: BenchResults) -> str:
    """CPU time per request: of all processes of a server, and of the one in front."""
    peers = [
        one
        for one in found.list_peers()
        if any(row.peer == one and row.cpu_us is not None for row in found.loads)
    ]
    rows = []
    for peer in peers:
        cells = []
        for workload in found.list_workloads():
            most = busy_connections(found, workload)
            whole, front = (
                found.median_of(peer, workload, most, what) for what in ("cpu_us", "front_cpu_us")
            )
            cells.append("" if whole is None else f"{whole:,.0f} / {front or 0:,.0f}")
        rows.append([_format_peer(peer), *cells])
    return (
        format_table(["µs of CPU per request, all / in front", *found.list_workloads()], rows) if rows else ""
    )


def in_front_table(found: BenchResults) -> str:
    """What stands before a node: rate and latency beside the node's own, and its own CPU time per request.

    Empty when no other gateway than ours was measured.
    """
    rows = [
        row
        for workload in found.list_workloads()
        for peer in (NODE, GATEWAY, *FRONTS)
        if (row := _in_front_row(found, workload, peer))
    ]
    head = ["", "", "requests/s", "of node", "p50 ms", "added µs", "CPU µs in front", "so at most /s"]
    return format_table(head, rows) if any(one in found.list_peers() for one in FRONTS) else ""


def _in_front_row(found: BenchResults, workload: str, peer: str) -> list[str]:
    """A row of the table above; empty when this server or the node was not measured."""
    most = busy_connections(found, workload)
    rate, of = found.median_of(peer, workload, most, "rps"), found.median_of(NODE, workload, most, "rps")
    p50, least = found.median_of(peer, workload, 1, "p50_us"), found.median_of(NODE, workload, 1, "p50_us")
    if not (rate and of and p50 and least):
        return []
    row = [workload, _format_peer(peer), _format_rate(rate)]
    if peer == NODE:
        return [*row, "", _format_millis(p50), "", "", ""]
    front = found.median_of(peer, workload, most, "front_cpu_us")
    limit = [f"{front:,.0f}", _format_rate(1e6 / front)] if front else ["", ""]
    return [*row, f"{rate / of:.2f}", _format_millis(p50), f"{p50 - least:,.0f}", *limit]


TABLES: Mapping[str, Callable[[BenchResults], str]] = {
    "rates": rates_table,
    "latencies": latencies_table,
    "evenness": evenness_table,
    "ratios": ratios_table,
    "growth": rates_by_connections_table,
    "in-front": in_front_table,
    "costs": costs_table,
    "processes": processes_table,
}


def _workload_table(
    found: BenchResults, peers: Sequence[str], cell: Callable[[str, str], str], what: str
) -> str:
    workloads = found.list_workloads()
    rows = []
    for peer in peers:
        cells = [cell(peer, workload) for workload in workloads]
        if any(cells):
            rows.append(
                [_format_peer(peer), *(f"**{one}**" if one and is_ours(peer) else one for one in cells)]
            )
    return format_table([what, *workloads], rows) if rows else ""


def format_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A markdown table, numbers aligned to the right."""
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(one)} |" for one in lines)


def _format_peer(peer: str) -> str:
    return f"**{title_of(peer)}**" if is_ours(peer) else title_of(peer)


def _format_ratio(relation: RatioDefinition, found: BenchResults, workload: str) -> str:
    value = relation.value(found, workload)
    return "" if value is None else relation.form.format(value)


def _format_rate(value: float | None) -> str:
    """Three digits: more would be noise."""
    return "" if value is None else f"{float(f'{value:.3g}'):,.0f}"


def _format_millis(micros: float | None) -> str:
    return "" if micros is None else f"{micros / 1e3:.3g}"


def _upper_median(values: Iterable[float]) -> float | None:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else None
