"""OpenTelemetry traces: gateway -> queue -> start -> node -> parse -> infer -> encode, sent as OTLP/HTTP.

Imported only if tracing is on (setting `otel_endpoint`). A thread exports the spans; spans that the collector
does not accept in time are dropped and counted, and no request ever waits for it.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from autoscaler.activator import Lease
from serving.errors import InvalidArgument
from serving.gateway.proxy.node_client import NodeReply
from serving.gateway.proxy.server_timing import compute_start_phases, parse_node_phases
from serving.gateway.request_context import ensure_request_id
from serving.gateway.thread_pool import ThreadPool
from serving.http_headers import Scope, select_headers

# The most spans that wait, and that are exported at once.
_MAX_WAITING, _BATCH = 4096, 512
# Seconds: between exports, the timeout of one, and of the last one when the server stops.
_EXPORT_INTERVAL, _EXPORT_TIMEOUT, _CLOSE_TIMEOUT = 1.0, 5.0, 2.0

_PARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-([0-9a-f]{2})(-.*)?")
_HEADERS = frozenset({b"traceparent", b"tracestate"})
_SAMPLED = 1


class Tracing:
    """Begins traces, and exports their spans to an endpoint such as http://HOST:4318.

    If the request has a `traceparent`, its sampled flag decides; else the share `sample` of all requests is
    traced. Raises InvalidArgument for an invalid endpoint.
    """

    def __init__(self, endpoint: str, sample: float) -> None:
        self._sample = sample
        self._propagator = TraceContextTextMapPropagator()
        self.span_counts = SpanCounts()
        exporter = _CountingSpanExporter(
            OTLPSpanExporter(_parse_traces_url(endpoint), timeout=_EXPORT_TIMEOUT), self.span_counts
        )
        batches = BatchSpanProcessor(
            exporter,
            max_queue_size=_MAX_WAITING,
            schedule_delay_millis=_EXPORT_INTERVAL * 1000,
            max_export_batch_size=_BATCH,
        )
        self._provider = TracerProvider(
            sampler=ALWAYS_ON,  # `begin_trace` decides
            resource=Resource.create({"service.name": "pilotlight"}),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(_BoundedSpanProcessor(batches, self.span_counts))
        self._tracer = self._provider.get_tracer("pilotlight")

    def begin_trace(self, scope: Scope, name: str) -> RequestTrace | None:
        """None if the request is not sampled."""
        given = select_headers(scope, _HEADERS)
        parent = _PARENT.fullmatch(given.get(b"traceparent", b""))
        if parent is None:
            sampled = random.random() < self._sample  # noqa: S311  no secret
            return RequestTrace(self._tracer, None, scope, name) if sampled else None
        if not int(parent[1], 16) & _SAMPLED:
            return None
        carrier = {key.decode(): value.decode("latin-1") for key, value in given.items()}
        return RequestTrace(self._tracer, self._propagator.extract(carrier), scope, name)

    async def close(self) -> None:
        """Export the waiting spans, for _CLOSE_TIMEOUT seconds at most."""
        closing = threading.Thread(target=self._provider.shutdown, name="traces-close", daemon=True)
        closing.start()
        await ThreadPool("traces", 1).run(closing.join, _CLOSE_TIMEOUT)


class RequestTrace:
    """The trace of one request, from its creation to `end`."""

    def __init__(self, tracer: Tracer, parent: Context | None, scope: Scope, name: str) -> None:
        self._tracer = tracer
        self._began_ns, self._began_at = time.time_ns(), time.monotonic()
        self._node_span: Span | None = None
        self._sent_at = 0.0
        attributes = {
            "http.request.method": scope["method"],
            "url.path": scope["path"],
            "pilotlight.request_id": ensure_request_id(scope),
        }
        self._root_span = tracer.start_span(
            name, parent, kind=SpanKind.SERVER, attributes=attributes, start_time=self._began_ns
        )
        self._context = set_span_in_context(self._root_span)

    @property
    def traceparent(self) -> bytes:
        """The header with which another server goes on with the trace."""
        context = self._root_span.get_span_context()
        return b"00-%032x-%016x-%02x" % (context.trace_id, context.span_id, context.trace_flags)

    def begin_node_span(self, lease: Lease) -> None:
        if lease.arrived is not None:
            self._add_wait_spans(lease, lease.arrived)
        self._sent_at = time.monotonic()
        self._node_span = self._tracer.start_span(
            "node",
            self._context,
            kind=SpanKind.CLIENT,
            attributes={"pilotlight.node": lease.node.id, "pilotlight.node.pid": lease.node.pid or 0},
            start_time=self._to_wall_time(self._sent_at),
        )

    def end_node_span(self, reply: NodeReply | None) -> None:
        node, self._node_span = self._node_span, None
        if node is None:
            return
        now = time.monotonic()
        if reply is None:
            node.set_status(StatusCode.ERROR, "The node gave no answer.")
        else:
            node.set_attribute("http.response.status_code", reply.status)
            self._add_node_phases(node, list(parse_node_phases(reply.headers)), now)
        node.end(self._to_wall_time(now))

    def end(self, status: int, *, name: str = "", version: str = "") -> None:
        """End the trace; `name` replaces the one of its beginning."""
        if name:
            self._root_span.update_name(name)
        if version:
            self._root_span.set_attribute("pilotlight.version", version)
        self._root_span.set_attribute("http.response.status_code", status)
        if status >= 500:
            self._root_span.set_status(StatusCode.ERROR, f"HTTP status {status}")
        self._root_span.end(self._to_wall_time(time.monotonic()))

    def _add_wait_spans(self, lease: Lease, arrived: float) -> None:
        """Add the wait for a node, and the part of it in which that node started."""
        queue = self._add_span("queue", self._context, arrived, lease.granted)
        for name, began, ended in compute_start_phases(lease.node):
            begin, end = max(began, arrived), min(ended, lease.granted)
            if end > begin:
                self._add_span(name, queue, begin, end)

    def _add_node_phases(self, node: Span, phases: Sequence[tuple[str, float]], now: float) -> None:
        """Add the node's phases. The times to the node and back are assumed to be equal."""
        context = set_span_in_context(node)
        at = self._sent_at + max(0.0, now - self._sent_at - sum(seconds for _, seconds in phases)) / 2
        for name, seconds in phases:
            self._add_span(name, context, at, at + seconds)
            at += seconds

    def _add_span(self, name: str, parent: Context, begin: float, end: float) -> Context:
        """Add a finished span; returns the context for its children."""
        span = self._tracer.start_span(name, parent, start_time=self._to_wall_time(begin))
        span.end(self._to_wall_time(end))
        return set_span_in_context(span)

    def _to_wall_time(self, at: float) -> int:
        """Nanoseconds since 1970 of a time on the monotonic clock."""
        return self._began_ns + int((at - self._began_at) * 1e9)


class SpanCounts:
    """Counts of ended spans; of those `taken`, the ones neither sent nor failed wait."""

    def __init__(self) -> None:
        self.taken = self.sent = self.failed = self.dropped = 0

    @property
    def waiting(self) -> int:
        return self.taken - self.sent - self.failed

    def get_result_counts(self) -> Mapping[str, int]:
        return {"sent": self.sent, "failed": self.failed, "dropped": self.dropped}


class _BoundedSpanProcessor(SpanProcessor):
    """Drops spans while too many wait."""

    def __init__(self, inner: SpanProcessor, spans: SpanCounts) -> None:
        self._inner = inner
        self._spans = spans

    def on_end(self, span: ReadableSpan) -> None:
        if self._spans.waiting >= _MAX_WAITING:
            self._spans.dropped += 1
        else:
            self._spans.taken += 1
            self._inner.on_end(span)

    def shutdown(self) -> None:
        self._inner.shutdown()


class _CountingSpanExporter(SpanExporter):
    """Counts the spans that the collector accepted."""

    def __init__(self, inner: SpanExporter, spans: SpanCounts) -> None:
        self._inner = inner
        self._spans = spans

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._inner.export(spans)
        if result is SpanExportResult.SUCCESS:
            self._spans.sent += len(spans)
        else:
            self._spans.failed += len(spans)
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()


def _parse_traces_url(endpoint: str) -> str:
    """The endpoint with its own path if it has one, else with OTLP's default path."""
    parts = urlsplit(endpoint)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise InvalidArgument(
            f"otel_endpoint must be the address of an OTLP/HTTP collector, like http://localhost:4318; it is "
            f"{endpoint!r}."
        )
    return endpoint if parts.path.strip("/") else f"{endpoint.rstrip('/')}/v1/traces"
