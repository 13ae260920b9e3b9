"""`pilotlight simulate --cells`: many versions on many servers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from autoscaler.simulation.cluster_replay import ClusterConditions, ClusterResult
    from autoscaler.simulation.traces import TrafficTrace

# Bytes of a node, where none are given: what the server takes a small one for before it was measured.
_NODE_BYTES = 48 << 20


def run_cluster(
    traces: list[TrafficTrace],
    requests_per_second: float,
    build_conditions: Callable[[list[float]], ClusterConditions],
    progress: Callable[[float], None],
) -> tuple[ClusterConditions, ClusterResult]:
    """A day whose load has the shape of a trace, and so many requests per second on average."""
    from autoscaler.simulation.cluster_replay import simulate_cluster  # noqa: PLC0415  start-up time

    if len(traces) > 1:
        raise typer.BadParameter(f"--cells is for the trace of one version; this one has {len(traces)}.")
    conditions = build_conditions(_build_load_curve(traces[0], requests_per_second))
    return conditions, simulate_cluster(conditions, progress)


def _build_load_curve(trace: TrafficTrace, mean: float) -> list[float]:
    """Requests per second, by step."""
    from autoscaler.simulation.cluster_replay import STEP  # noqa: PLC0415

    curve = [0.0] * max(1, int(trace.length // STEP))
    for second, requests in trace.count_by_second().items():
        curve[min(len(curve) - 1, int(second // STEP))] += requests
    total = sum(curve)
    if not total:
        raise typer.BadParameter("The trace has no requests: a load cannot have its shape.")
    return [mean * len(curve) * requests / total for requests in curve]


def choose_node_bytes(node_bytes: int) -> int:
    return node_bytes or _NODE_BYTES


def as_json(trace: str, conditions: ClusterConditions, result: ClusterResult) -> dict[str, Any]:
    given = dataclasses.asdict(conditions)
    del given["curve"]
    return {"trace": trace, "conditions": given, **dataclasses.asdict(result)}


def print_cluster(result: ClusterResult) -> None:
    rows = {
        "servers": f"{result.servers:,}",
        "versions": f"{result.versions:,}",
        "requests": f"{result.requests:,.0f}",
        "hops": f"{result.hops:,.0f} ({result.hops / max(1.0, result.requests):.1%})",
        "cold starts": f"{result.cold_starts:,.0f}",
        "of these after a move": f"{result.moved_starts:,.0f}",
        "moves of versions": f"{result.moves:,}",
        "of these awake": f"{result.awake_moves:,.0f}",
        "memory of a server": f"{_format_gigabytes(result.memory_mean)} on average",
        "most memory": _format_gigabytes(result.memory_max),
        "highest load": f"{result.peak_load:.0%} of a server",
        "highest to mean load": f"{result.usual_ratio:.2f} (median)",
        "minutes over full": f"{result.full_minutes:,.0f}",
        "with several owners": f"{result.wide_versions:,} versions, {result.most_owners} owners at most",
        "lowest weight": f"{result.lowest_weight}/16",
    }
    width = max(map(len, rows)) + 2
    for name, value in rows.items():
        print(f"{name:{width}}{value}")


def _format_gigabytes(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"
