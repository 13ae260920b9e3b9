"""Traces as a collector gets them, over real HTTP."""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from autoscaler.activator import Lease
from serving.config import ServeConfig
from serving.errors import FailedPrecondition, InvalidArgument
from serving.gateway.observability import tracing as tracing_module
from serving.gateway.observability.api_metrics import ApiMetricsMiddleware, create_tracing
from serving.gateway.observability.prediction_stats import PredictionStats
from serving.gateway.observability.tracing import RequestTrace, Tracing
from serving.gateway.proxy.node_client import NodeReply
from serving.http_headers import Scope
from tests.bounds import HANG_SECONDS
from tests.serving.gateway.collector import Collector, attributes, collecting
from tests.serving.gateway.proxy.test_server_timing import make_lease

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
NODE = NodeReply(
    200, [(b"server-timing", b"parse;dur=1.0, wait;dur=0.5, infer;dur=2.0, encode;dur=0.5")], b"{}"
)


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """One that gets spans soon."""
    monkeypatch.setattr(tracing_module, "_EXPORT_INTERVAL", 0.05)
    with collecting() as found:
        yield found


@pytest.fixture(autouse=True)
def _over(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What still tries to send spans ends here: it draws random numbers, on which later tests may count."""
    monkeypatch.setattr(tracing_module, "_EXPORT_TIMEOUT", 0.5)
    yield
    for thread in threading.enumerate():
        if thread.name == "traces-close":
            thread.join(HANG_SECONDS)
            assert not thread.is_alive()


def scope(parent: str = "", state: str = "", path: str = "/v1/projects/p/models/m:predict") -> Scope:
    given = {"traceparent": parent, "tracestate": state}
    headers = [(name.encode(), value.encode()) for name, value in given.items() if value]
    return {"type": "http", "method": "POST", "path": path, "headers": headers}


def close(made: Tracing) -> None:
    asyncio.run(made.close())


def begun(made: Tracing, found: Scope) -> RequestTrace:
    trace = made.begin_trace(found, "projects.predict")
    assert trace is not None
    return trace


def woken() -> Lease:
    """A lease that has waited 100 ms, of which the node's start took 90, until just now."""
    now = time.monotonic()
    return make_lease(
        arrived=now - 0.1, asked=now - 0.09, ready=now, granted=now, load=0.04, warm=0.02
    )  # fmt: skip


def test_a_prediction_that_wakes_a_version(collector: Collector) -> None:
    """Every phase is a span of the caller's trace, inside the span that it is part of."""
    made = Tracing(collector.endpoint, 0.0)
    trace = begun(made, scope(f"00-{TRACE}-{PARENT}-01", "vendor=one,other=two"))
    trace.begin_node_span(woken())
    time.sleep(0.01)
    trace.end_node_span(NODE)
    trace.end(200, version="projects/p/models/m/versions/v")
    spans = collector.trace(10)
    close(made)

    assert (collector.services, collector.paths) == ({"pilotlight"}, {"/v1/traces"})
    root, node = spans["projects.predict"], spans["node"]
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE, PARENT)
    assert {name: spans[name].parent_span_id for name in spans if name != root.name} == {
        **dict.fromkeys(("queue", "node"), root.span_id),
        **dict.fromkeys(("start", "load", "warm"), spans["queue"].span_id),
        **dict.fromkeys(("parse", "wait", "infer", "encode"), node.span_id),
    }
    assert attributes(root)["pilotlight.version"] == "projects/p/models/m/versions/v"
    assert (
        attributes(root)["http.response.status_code"] == attributes(node)["http.response.status_code"] == 200
    )
    for name, seconds in (("queue", 0.1), ("start", 0.03), ("load", 0.04), ("warm", 0.02), ("infer", 0.002)):
        span = spans[name]
        assert (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9 == pytest.approx(seconds, abs=1e-4)
    inside = [spans[name] for name in ("parse", "wait", "infer", "encode")]
    assert node.start_time_unix_nano <= inside[0].start_time_unix_nano
    assert inside[-1].end_time_unix_nano <= node.end_time_unix_nano <= root.end_time_unix_nano


def test_another_server_goes_on_with_a_trace(collector: Collector) -> None:
    made = Tracing(collector.endpoint, 1.0)
    first = begun(made, scope(f"00-{TRACE}-{PARENT}-01"))
    second = begun(made, scope(first.traceparent.decode()))
    second.begin_node_span(make_lease(arrived=0.0, asked=0.0, ready=0.0, granted=0.0))
    second.end_node_span(None)
    second.end(200)
    spans = collector.trace(3)
    first.end(200)
    close(made)

    assert {span.trace_id.hex() for span in spans.values()} == {TRACE}
    assert spans["projects.predict"].parent_span_id.hex() == first.traceparent.decode().split("-")[2]


def test_a_request_that_fails(collector: Collector) -> None:
    """A node that hangs up and an answer of 500 are errors; each attempt has its span."""
    made = Tracing(collector.endpoint, 1.0)
    trace = begun(made, scope())
    trace.begin_node_span(make_lease(arrived=0.0, asked=0.0, ready=0.0, granted=0.0))
    trace.end_node_span(None)
    trace.end(500)
    spans = collector.trace(3)
    close(made)

    assert {name: span.status.code for name, span in spans.items()} == {
        "projects.predict": 2, "node": 2, "queue": 0
    }  # fmt: skip


@pytest.mark.parametrize(
    ("parent", "share", "traced"),
    [
        ("", 0.0, False),
        ("", 1.0, True),
        (f"00-{TRACE}-{PARENT}-00", 1.0, False),
        (f"00-{TRACE}-{PARENT}-01", 0.0, True),
        ("nonsense", 1.0, True),
        ("nonsense", 0.0, False),
    ],
)
def test_who_decides(parent: str, share: float, traced: bool) -> None:
    """The caller, if there is a trace already; else the share of requests that are to be traced."""
    made = Tracing("http://127.0.0.1:9", share)
    assert (made.begin_trace(scope(parent), "any") is not None) == traced
    close(made)


def test_calls_are_named_after_their_method(collector: Collector) -> None:
    """They are counted, too; what is no call of the API is neither."""
    made = Tracing(collector.endpoint, 1.0)
    stats = PredictionStats()

    class NamedRoute:
        name = "projects.models.get"

    async def app(found: Scope, _: Any, send: Any) -> None:
        found["route"] = NamedRoute
        await send({"type": "http.response.start", "status": 404})

    async def send(_: Any) -> None:
        pass

    async def main() -> None:
        calls = ApiMetricsMiddleware(app, stats, made)
        await calls(scope(path="/v1/projects/p/models/m"), None, send)  # type: ignore[arg-type]  # unused
        await calls(scope(path="/healthz"), None, send)  # type: ignore[arg-type]

    asyncio.run(main())
    spans = collector.trace(1)
    close(made)

    assert attributes(spans["projects.models.get"])["http.response.status_code"] == 404
    assert stats.api_calls == {("projects.models.get", 404): 1}


def test_a_collector_that_refuses_costs_spans_and_nothing_else(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They are counted: those that were refused, and those that did not even fit."""
    caplog.set_level(logging.CRITICAL)
    monkeypatch.setattr(tracing_module, "_MAX_WAITING", 8)
    monkeypatch.setattr(tracing_module, "_BATCH", 8)
    monkeypatch.setattr(tracing_module, "_EXPORT_INTERVAL", 1.0)
    collector.refusing = True
    made = Tracing(collector.endpoint, 1.0)
    for _ in range(100):
        begun(made, scope()).end(200)
    close(made)

    counts = made.span_counts.get_result_counts()
    assert counts["sent"] == 0
    assert counts["failed"] >= 8
    assert counts["failed"] + counts["dropped"] == 100
    assert not collector.spans


def test_a_collector_that_hangs_holds_nothing_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither requests nor the end of the server."""
    caplog.set_level(logging.CRITICAL)
    monkeypatch.setattr(tracing_module, "_EXPORT_INTERVAL", 0.05)
    monkeypatch.setattr(tracing_module, "_CLOSE_TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        made = Tracing(f"http://127.0.0.1:{deaf.getsockname()[1]}", 1.0)
        begun(made, scope()).end(200)
        time.sleep(0.2)
        begin = time.monotonic()
        close(made)

    assert time.monotonic() - begin < 9  # an export alone may take 10
    counts = made.span_counts.get_result_counts()
    # Whether the export had given up before the end is a matter of how busy the machine is.
    assert (counts["sent"], counts["dropped"]) == (0, 0)


@pytest.mark.parametrize("endpoint", ["collector:4318", "ftp://collector", "http://", "nonsense"])
def test_an_endpoint_that_cannot_be_is_refused(endpoint: str) -> None:
    """By the setting's name."""
    with pytest.raises(InvalidArgument, match="otel_endpoint must be the address"):
        create_tracing(ServeConfig(otel_endpoint=endpoint))


@pytest.mark.parametrize(
    ("endpoint", "address"),
    [
        ("http://host:4318", "http://host:4318/v1/traces"),
        ("http://host:4318/", "http://host:4318/v1/traces"),
        ("https://host/tenant/traces", "https://host/tenant/traces"),
    ],
)
def test_the_usual_path_may_be_left_out(endpoint: str, address: str) -> None:
    """Another one may be given."""
    assert tracing_module._parse_traces_url(endpoint) == address


def test_where_opentelemetry_is_missing_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to install."""
    monkeypatch.delitem(sys.modules, "serving.gateway.observability.tracing")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(FailedPrecondition, match=r"pip install 'pilotlight\[otel\]'"):
        create_tracing(ServeConfig(otel_endpoint="http://localhost:4318"))


def test_without_an_endpoint_nothing_of_opentelemetry_is_imported() -> None:
    """By the whole gateway."""
    code = (
        "import sys\n"
        "from serving.config import ServeConfig\n"
        "from serving.gateway.observability.api_metrics import create_tracing\n"
        "import serving.gateway.main\n"
        "assert create_tracing(ServeConfig()) is None\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
