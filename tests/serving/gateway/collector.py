"""A collector of OpenTelemetry traces, as far as tests need one: OTLP over HTTP, on a free port."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """What has arrived; with `refusing`, what is refused."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.services: set[str] = set()
        self.paths: set[str] = set()
        self.refusing = False
        self.endpoint = ""

    def trace(self, count: int) -> dict[str, Span]:
        """The spans by name, once so many are there; all of one trace."""
        deadline = time.monotonic() + 20
        while len(self.spans) < count:
            assert time.monotonic() < deadline, [span.name for span in self.spans]
            time.sleep(0.02)
        assert len({span.trace_id for span in self.spans}) == 1
        found = {span.name: span for span in self.spans}
        assert len(found) == len(self.spans) == count, [span.name for span in self.spans]
        return found


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector that listens."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if not collector.refusing:
                collector.paths.add(self.path)
                for found in ExportTraceServiceRequest.FromString(body).resource_spans:
                    names = {one.key: one.value.string_value for one in found.resource.attributes}
                    collector.services.add(names["service.name"])
                    collector.spans += [span for scope in found.scope_spans for span in scope.spans]
            self.send_response(400 if collector.refusing else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        collector.endpoint = f"http://127.0.0.1:{server.server_port}"
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


def attributes(span: Span) -> dict[str, str | int]:
    """As Python has them."""
    return {
        one.key: one.value.string_value or one.value.int_value  # those we set are either
        for one in span.attributes
    }
