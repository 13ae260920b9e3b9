"""OpenTelemetry traces: gateway -> queue -> start -> node -> parse -> infer -> encode, sent as OTLP/HTTP.

Imported only where traces are switched on (setting `otel_endpoint`). Spans leave in a thread; what the
collector does not take in time is dropped and counted: no request ever waits for it.
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

# Spans that may wait to be sent, and how many go together; the seconds between sendings, those that one may
# take, and those that the last one may take when the server stops.
_WAITING, _TOGETHER = 4096, 512
_EVERY, _PATIENCE, _LAST = 1.0, 5.0, 2.0

_PARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-([0-9a-f]{2})(-.*)?")
_HEADERS = frozenset({b"traceparent", b"tracestate"})
_SAMPLED = 1


class Tracing:
    """Begins traces, and sends their spans to an endpoint: http://HOST:4318, say.

    Where the caller has a trace already, the caller has decided whether it is sampled; else `sample` of all
    requests are. Raises InvalidArgument for an endpoint that cannot be.
    """

    def __init__(self, endpoint: str, sample: float) -> None:
        self._sample = sample
        self._propagator = TraceContextTextMapPropagator()
        self.span_counts = SpanCounts()
        exporter = _CountingSpanExporter(
            OTLPSpanExporter(_parse_traces_url(endpoint), timeout=_PATIENCE), self.span_counts
        )
        batches = BatchSpanProcessor(
            exporter,
            max_queue_size=_WAITING,
            schedule_delay_millis=_EVERY * 1000,
            max_export_batch_size=_TOGETHER,
        )
        self._provider = TracerProvider(
            sampler=ALWAYS_ON,  # it is asked only once the decision is made
            resource=Resource.create({"service.name": "pilotlight"}),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(_BoundedSpanProcessor(batches, self.span_counts))
        self._tracer = self._provider.get_tracer("pilotlight")

    def begin_trace(self, scope: Scope, name: str) -> RequestTrace | None:
        """The trace of a request; None if it is not sampled."""
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
        """Send what waits, for a moment at most."""
        closing = threading.Thread(target=self._provider.shutdown, name="traces-close", daemon=True)
        closing.start()
        await ThreadPool("traces", 1).run(closing.join, _LAST)


class RequestTrace:
    """One request that is traced, from now to `end`."""

    def __init__(self, tracer: Tracer, parent: Context | None, scope: Scope, name: str) -> None:
        self._tracer = tracer
        self._began, self._began_at = time.time_ns(), time.monotonic()
        self._node: Span | None = None
        self._sent = 0.0
        attributes = {
            "http.request.method": scope["method"],
            "url.path": scope["path"],
            "pilotlight.request_id": ensure_request_id(scope),
        }
        self._root = tracer.start_span(
            name, parent, kind=SpanKind.SERVER, attributes=attributes, start_time=self._began
        )
        self._context = set_span_in_context(self._root)

    def begin_node_span(self, lease: Lease) -> None:
        """The request is sent to a node."""
        if lease.arrived is not None:
            self._add_wait_spans(lease, lease.arrived)
        self._sent = time.monotonic()
        self._node = self._tracer.start_span(
            "node",
            self._context,
            kind=SpanKind.CLIENT,
            attributes={"pilotlight.node": lease.node.id, "pilotlight.node.pid": lease.node.pid or 0},
            start_time=self._to_wall_time(self._sent),
        )

    def end_node_span(self, reply: NodeReply | None) -> None:
        """It comes back, with an answer or without."""
        node, self._node = self._node, None
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
        """The request is answered; `name` is a better one than was known when it began."""
        if name:
            self._root.update_name(name)
        if version:
            self._root.set_attribute("pilotlight.version", version)
        self._root.set_attribute("http.response.status_code", status)
        if status >= 500:
            self._root.set_status(StatusCode.ERROR, f"HTTP status {status}")
        self._root.end(self._to_wall_time(time.monotonic()))

    def _add_wait_spans(self, lease: Lease, arrived: float) -> None:
        """The wait for a node, and how much of it was the start of that node."""
        queue = self._add_span("queue", self._context, arrived, lease.granted)
        for name, began, ended in compute_start_phases(lease.node):
            begin, end = max(began, arrived), min(ended, lease.granted)
            if end > begin:
                self._add_span(name, queue, begin, end)

    def _add_node_phases(self, node: Span, phases: Sequence[tuple[str, float]], now: float) -> None:
        """What the node says it did. The ways there and back are taken to be equally long."""
        context = set_span_in_context(node)
        at = self._sent + max(0.0, now - self._sent - sum(seconds for _, seconds in phases)) / 2
        for name, seconds in phases:
            self._add_span(name, context, at, at + seconds)
            at += seconds

    def _add_span(self, name: str, parent: Context, begin: float, end: float) -> Context:
        """A span that is over; returns the context of what is inside it."""
        span = self._tracer.start_span(name, parent, start_time=self._to_wall_time(begin))
        span.end(self._to_wall_time(end))
        return set_span_in_context(span)

    def _to_wall_time(self, at: float) -> int:
        """A time of the monotonic clock as spans have it: nanoseconds since 1970."""
        return self._began + int((at - self._began_at) * 1e9)


class SpanCounts:
    """What has become of all spans that have ended; the rest of `taken` waits to be sent."""

    def __init__(self) -> None:
        self.taken = self.sent = self.failed = self.dropped = 0

    @property
    def waiting(self) -> int:
        """Those on their way."""
        return self.taken - self.sent - self.failed

    def get_final_counts(self) -> Mapping[str, int]:
        """The counts that are final."""
        return {"sent": self.sent, "failed": self.failed, "dropped": self.dropped}


class _BoundedSpanProcessor(SpanProcessor):
    """Hands spans on while not too many wait."""

    def __init__(self, inner: SpanProcessor, spans: SpanCounts) -> None:
        self._inner = inner
        self._spans = spans

    def on_end(self, span: ReadableSpan) -> None:
        if self._spans.waiting >= _WAITING:
            self._spans.dropped += 1
        else:
            self._spans.taken += 1
            self._inner.on_end(span)

    def shutdown(self) -> None:
        self._inner.shutdown()


class _CountingSpanExporter(SpanExporter):
    """Counts what the collector took."""

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
    """Where spans go: the endpoint's own path, if it has one, else the usual one."""
    parts = urlsplit(endpoint)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise InvalidArgument(
            f"otel_endpoint must be the address of an OTLP/HTTP collector, like http://localhost:4318; it is "
            f"{endpoint!r}."
        )
    return endpoint if parts.path.strip("/") else f"{endpoint.rstrip('/')}/v1/traces"
