"""The `Server-Timing` header of requests that waited for a node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autoscaler.activator import Lease
from autoscaler.pools import Node

_NAME = b"server-timing"
_NO_START = (("start", 0.0), ("load", 0.0), ("warm", 0.0))
Headers = Sequence[tuple[bytes, bytes]]


def with_server_timing(lease: Lease, headers: Headers) -> Headers:
    """The node's headers, with the phases of the wait before the node's own phases, in milliseconds.

    `start`, `load` and `warm` count only as far as this request waited for them; `queue` is the rest of
    its wait.
    """
    wait = ", ".join(f"{name};dur={seconds * 1000:.1f}" for name, seconds in compute_wait_phases(lease))
    own = [value for name, value in headers if name == _NAME]
    others = [header for header in headers if header[0] != _NAME]
    return [*others, (_NAME, b", ".join([wait.encode(), *own]))]


def without_server_timing(headers: Headers) -> Headers:
    return [header for header in headers if header[0] != _NAME]


def parse_node_phases(headers: Headers) -> Iterator[tuple[str, float]]:
    """The phases in a node's reply, with their seconds."""
    timing = b", ".join(value for name, value in headers if name == _NAME).decode()
    for phase in timing.split(", ") if timing else ():
        name, _, milliseconds = phase.partition(";dur=")
        yield name, float(milliseconds) / 1000


def compute_wait_phases(lease: Lease) -> Iterator[tuple[str, float]]:
    """The phases of a wait and the seconds of each: queue, start, load, warm."""
    if not lease.waited_for_start:  # under load that is every request: it must cost little
        yield "queue", lease.seconds_waited
        yield from _NO_START
        return
    granted = lease.granted
    arrived = granted if lease.arrived is None else lease.arrived
    waited = {
        name: max(0.0, min(end, granted) - max(begin, arrived))
        for name, begin, end in compute_start_phases(lease.node)
    }
    yield "queue", max(0.0, granted - arrived - sum(waited.values()))
    yield from waited.items()


def compute_start_phases(node: Node) -> Iterator[tuple[str, float, float]]:
    """When a node started, loaded and warmed up: name, begin, end."""
    ready = node.asked_at if node.ready_at is None else node.ready_at
    loaded = ready - node.report.get("warm_seconds", 0.0)
    started = loaded - node.report.get("load_seconds", 0.0)
    yield "start", node.asked_at, started
    yield "load", started, loaded
    yield "warm", loaded, ready
