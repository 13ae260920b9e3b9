"""Titles, order and ratios of the servers that were measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from loadtests.bench.reporting.results import BenchResults

NODE, GATEWAY = "node", "gateway"
FRONTS = ("nginx", "haproxy", "forwarder")
BUSY_CONNECTIONS, FEW_CONNECTIONS = 64, 16
_ECHOES = ("echo", "asgi-echo", "granian-echo")
_TITLES = {
    "node": "`pilotlight node`",
    "gateway": "`pilotlight serve` (gateway and node)",
    "apart": "gateway, its node on the core of the load",
    "echo": "echo: a constant, the limit of the HTTP stack",
    "asgi-echo": "echo: a constant, the limit of the HTTP stack",
    "granian-echo": "echo on Granian",
    "plain": "Starlette and orjson, by hand",
    "starlette-orjson": "Starlette and orjson, by hand",
    "starlette-orjson-gcfreeze": "Starlette and orjson, `gc.freeze()`",
    "asgi-best": "bare ASGI, all known techniques",
    "asgi-best-batch": "bare ASGI, all known techniques, batching",
    "asgi-best-gcdefault": "bare ASGI, all known techniques, no `gc.freeze()`",
    "fastapi-naive": "FastAPI",
    "fastapi-naive-accesslog": "FastAPI, access log on",
    "fastapi-naive-gcfreeze": "FastAPI, `gc.freeze()`",
    "mlserver": "MLServer",
    "mlserver-batch": "MLServer, batching",
    "mlserver-parallel1": "MLServer, one worker",
    "kserve-v1": "KServe",
    "kserve-v2": "KServe, V2 protocol",
    "bentoml": "BentoML",
    "bentoml-batch": "BentoML, batching",
    "litserve": "LitServe",
    "litserve-fastqueue": "LitServe, fast queue",
    "litserve-batch": "LitServe, batching",
    "ray-serve": "Ray Serve",
    "ray-serve-tput": "Ray Serve, throughput",
    "ray-serve-batch": "Ray Serve, batching",
    "pytriton": "Triton with a Python model, batching",
    "nginx": "node behind nginx",
    "haproxy": "node behind HAProxy",
    "forwarder": "node behind a bare forwarder",
}
# Not servers of others: limits, references, and our own node behind a proxy.
_NO_PEERS = {*_ECHOES, "apart", "plain", *FRONTS}


def title_of(peer: str) -> str:
    return _TITLES.get(peer, peer)


def is_ours(peer: str) -> bool:
    """Whether it is Pilotlight by itself."""
    return peer in (NODE, GATEWAY)


def is_echo(peer: str) -> bool:
    return peer in _ECHOES


def busy_connections(found: BenchResults, workload: str) -> int:
    """The number of connections whose rate counts: 64, or the most that were tried if those are fewer."""
    tried = {one.conns for one in found.loads if one.workload == workload}
    return BUSY_CONNECTIONS if BUSY_CONNECTIONS in tried else max(tried, default=BUSY_CONNECTIONS)


def rate_order(found: BenchResults) -> list[str]:
    """The fastest first, by the rate on the first workload that they were loaded with."""
    return _order_peers(
        found,
        lambda peer, workload: (
            -(found.median_of(peer, workload, busy_connections(found, workload), "rps") or 0)
        ),
    )


def latency_order(found: BenchResults) -> list[str]:
    """The lowest latency first."""
    return _order_peers(found, lambda peer, workload: found.median_of(peer, workload, 1, "p50_us") or 0)


def _order_peers(found: BenchResults, key: Callable[[str, str], float]) -> list[str]:
    """Peers with the first workload come before those without it."""

    def sort_key(peer: str) -> tuple[int, float]:
        mine = [
            one
            for one in found.list_workloads()
            if any((row.peer, row.workload) == (peer, one) for row in found.loads)
        ]
        return found.list_workloads().index(mine[0]), key(peer, mine[0])

    return sorted(found.list_peers(), key=sort_key)


@dataclass(frozen=True)
class RatioDefinition:
    """A ratio of ours to others; None for a workload where one of them is missing."""

    title: str
    value: Callable[[BenchResults, str], float | None]
    form: str = "{:.2f}"


def list_ratios(found: BenchResults) -> list[RatioDefinition]:
    """The ratios that make sense for the servers that were measured."""
    echo = next((one for one in _ECHOES if one in found.list_peers()), "echo")
    others = [one for one in found.list_peers() if not is_ours(one) and one not in _NO_PEERS]
    peers = [one for one in others if not one.startswith("asgi-best")]
    by_hand = [one for one in found.list_peers() if one.startswith(("plain", "starlette"))]
    made = [
        RatioDefinition("node / echo, requests/s", _rate_ratio(NODE, [echo])),
        RatioDefinition("gateway / node, requests/s", _rate_ratio(GATEWAY, [NODE])),
        RatioDefinition("gateway / echo, requests/s", _rate_ratio(GATEWAY, [echo])),
        RatioDefinition("node / Starlette by hand, requests/s", _rate_ratio(NODE, by_hand), "{:.1f}"),
        RatioDefinition("node / FastAPI, requests/s", _rate_ratio(NODE, ["fastapi-naive"]), "{:.1f}"),
        RatioDefinition(
            "node / FastAPI with `gc.freeze()`, requests/s",
            _rate_ratio(NODE, ["fastapi-naive-gcfreeze"]),
            "{:.1f}",
        ),
        RatioDefinition("node / MLServer, requests/s", _rate_ratio(NODE, ["mlserver"]), "{:.1f}"),
        RatioDefinition("node / best other, requests/s", _rate_ratio(NODE, peers), "{:.1f}"),
        RatioDefinition("gateway / best other, requests/s", _rate_ratio(GATEWAY, peers), "{:.1f}"),
        RatioDefinition("node / bare ASGI with batching, requests/s", _rate_ratio(NODE, ["asgi-best-batch"])),
        RatioDefinition("best other / node, p50 on one connection", _latency_ratio(peers, NODE), "{:.1f}"),
        RatioDefinition(
            "best other / gateway, p50 on one connection", _latency_ratio(peers, GATEWAY), "{:.1f}"
        ),
        RatioDefinition(
            "node minus echo, p50 on one connection, µs", _latency_difference(NODE, echo), "{:,.0f}"
        ),
        RatioDefinition(
            "gateway minus node, p50 on one connection, µs", _latency_difference(GATEWAY, NODE), "{:,.0f}"
        ),
        RatioDefinition(
            "node, p99 / p50 at 16, of that of bare ASGI with batching",
            _spread_ratio(NODE, "asgi-best-batch"),
        ),
        RatioDefinition(
            "gateway, p99 / p50 at 16, of that of bare ASGI with batching",
            _spread_ratio(GATEWAY, "asgi-best-batch"),
        ),
    ]
    return made


def _rate_ratio(ours: str, others: Sequence[str]) -> Callable[[BenchResults, str], float | None]:
    def value(found: BenchResults, workload: str) -> float | None:
        most = busy_connections(found, workload)
        mine = found.median_of(ours, workload, most, "rps")
        best = max(_drop_missing(found.median_of(one, workload, most, "rps") for one in others), default=None)
        return mine / best if mine and best else None

    return value


def _latency_ratio(others: Sequence[str], ours: str) -> Callable[[BenchResults, str], float | None]:
    def value(found: BenchResults, workload: str) -> float | None:
        mine = found.median_of(ours, workload, 1, "p50_us")
        best = min(_drop_missing(found.median_of(one, workload, 1, "p50_us") for one in others), default=None)
        return best / mine if mine and best else None

    return value


def _latency_difference(one: str, other: str) -> Callable[[BenchResults, str], float | None]:
    def value(found: BenchResults, workload: str) -> float | None:
        first, second = (found.median_of(peer, workload, 1, "p50_us") for peer in (one, other))
        return None if first is None or second is None else first - second

    return value


def _spread_ratio(one: str, other: str) -> Callable[[BenchResults, str], float | None]:
    def spread(found: BenchResults, peer: str, workload: str) -> float | None:
        p99, p50 = (found.median_of(peer, workload, FEW_CONNECTIONS, what) for what in ("p99_us", "p50_us"))
        return p99 / p50 if p99 and p50 else None

    def value(found: BenchResults, workload: str) -> float | None:
        first, second = spread(found, one, workload), spread(found, other, workload)
        return first / second if first and second else None

    return value


def _drop_missing(values: Iterable[float | None]) -> list[float]:
    return [one for one in values if one is not None]
