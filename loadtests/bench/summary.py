"""What the rows say: who is who, in which order, and how ours relate to the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from loadtests.bench.results import Results

NODE, GATEWAY = "node", "gateway"
FRONTS = ("nginx", "haproxy", "forwarder")
BUSY, CALM = 64, 16
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
# Nobody else's way to serve a model: limits, references, and our own node behind something.
_NO_PEERS = {*_ECHOES, "apart", "plain", *FRONTS}


def title(peer: str) -> str:
    """What it is, in a few words."""
    return _TITLES.get(peer, peer)


def is_ours(peer: str) -> bool:
    """Whether it is Pilotlight, nothing added."""
    return peer in (NODE, GATEWAY)


def is_echo(peer: str) -> bool:
    """Whether it answers a constant."""
    return peer in _ECHOES


def busy(found: Results, workload: str) -> int:
    """The number of connections whose rate counts: 64, or the most that were tried if those are fewer."""
    tried = {one.conns for one in found.loads if one.workload == workload}
    return BUSY if BUSY in tried else max(tried, default=BUSY)


def rate_order(found: Results) -> list[str]:
    """The fastest first, by the rate on the first workload that they were loaded with."""
    return _order(
        found, lambda peer, workload: -(found.median(peer, workload, busy(found, workload), "rps") or 0)
    )


def latency_order(found: Results) -> list[str]:
    """The quickest first."""
    return _order(found, lambda peer, workload: found.median(peer, workload, 1, "p50_us") or 0)


def _order(found: Results, key: Callable[[str, str], float]) -> list[str]:
    """Those with the first workload come before those without it."""

    def place(peer: str) -> tuple[int, float]:
        mine = [
            one
            for one in found.workloads()
            if any((row.peer, row.workload) == (peer, one) for row in found.loads)
        ]
        return found.workloads().index(mine[0]), key(peer, mine[0])

    return sorted(found.peers(), key=place)


@dataclass(frozen=True)
class Relation:
    """A figure that says how ours relate to others; None for a workload where one of them is missing."""

    title: str
    value: Callable[[Results, str], float | None]
    form: str = "{:.2f}"


def relations(found: Results) -> list[Relation]:
    """Those that make sense for the servers that were measured."""
    echo = next((one for one in _ECHOES if one in found.peers()), "echo")
    others = [one for one in found.peers() if not is_ours(one) and one not in _NO_PEERS]
    peers = [one for one in others if not one.startswith("asgi-best")]
    by_hand = [one for one in found.peers() if one.startswith(("plain", "starlette"))]
    made = [
        Relation("node / echo, requests/s", _rate_ratio(NODE, [echo])),
        Relation("gateway / node, requests/s", _rate_ratio(GATEWAY, [NODE])),
        Relation("gateway / echo, requests/s", _rate_ratio(GATEWAY, [echo])),
        Relation("node / Starlette by hand, requests/s", _rate_ratio(NODE, by_hand), "{:.1f}"),
        Relation("node / FastAPI, requests/s", _rate_ratio(NODE, ["fastapi-naive"]), "{:.1f}"),
        Relation(
            "node / FastAPI with `gc.freeze()`, requests/s",
            _rate_ratio(NODE, ["fastapi-naive-gcfreeze"]),
            "{:.1f}",
        ),
        Relation("node / MLServer, requests/s", _rate_ratio(NODE, ["mlserver"]), "{:.1f}"),
        Relation("node / best other, requests/s", _rate_ratio(NODE, peers), "{:.1f}"),
        Relation("gateway / best other, requests/s", _rate_ratio(GATEWAY, peers), "{:.1f}"),
        Relation("node / bare ASGI with batching, requests/s", _rate_ratio(NODE, ["asgi-best-batch"])),
        Relation("best other / node, p50 on one connection", _latency_ratio(peers, NODE), "{:.1f}"),
        Relation("best other / gateway, p50 on one connection", _latency_ratio(peers, GATEWAY), "{:.1f}"),
        Relation("node minus echo, p50 on one connection, µs", _added(NODE, echo), "{:,.0f}"),
        Relation("gateway minus node, p50 on one connection, µs", _added(GATEWAY, NODE), "{:,.0f}"),
        Relation(
            "node, p99 / p50 at 16, of that of bare ASGI with batching", _evenness(NODE, "asgi-best-batch")
        ),
        Relation(
            "gateway, p99 / p50 at 16, of that of bare ASGI with batching",
            _evenness(GATEWAY, "asgi-best-batch"),
        ),
    ]
    return made


def _rate_ratio(ours: str, others: Sequence[str]) -> Callable[[Results, str], float | None]:
    def value(found: Results, workload: str) -> float | None:
        most = busy(found, workload)
        mine = found.median(ours, workload, most, "rps")
        best = max(_there(found.median(one, workload, most, "rps") for one in others), default=None)
        return mine / best if mine and best else None

    return value


def _latency_ratio(others: Sequence[str], ours: str) -> Callable[[Results, str], float | None]:
    def value(found: Results, workload: str) -> float | None:
        mine = found.median(ours, workload, 1, "p50_us")
        best = min(_there(found.median(one, workload, 1, "p50_us") for one in others), default=None)
        return best / mine if mine and best else None

    return value


def _added(one: str, other: str) -> Callable[[Results, str], float | None]:
    def value(found: Results, workload: str) -> float | None:
        first, second = (found.median(peer, workload, 1, "p50_us") for peer in (one, other))
        return None if first is None or second is None else first - second

    return value


def _evenness(one: str, other: str) -> Callable[[Results, str], float | None]:
    def spread(found: Results, peer: str, workload: str) -> float | None:
        p99, p50 = (found.median(peer, workload, CALM, what) for what in ("p99_us", "p50_us"))
        return p99 / p50 if p99 and p50 else None

    def value(found: Results, workload: str) -> float | None:
        first, second = spread(found, one, workload), spread(found, other, workload)
        return first / second if first and second else None

    return value


def _there(values: Iterable[float | None]) -> list[float]:
    return [one for one in values if one is not None]
