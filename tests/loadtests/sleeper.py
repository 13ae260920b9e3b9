"""A server that a test can look through: one node, which starts in a known time and soon sleeps again."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WAKE_SECONDS = 0.3
MODEL = "projects/local/models/sleeper"
VERSION = f"{MODEL}/versions/v1"


@dataclass
class Sleeper:
    """What the server knows; `idle_seconds` after its last request its node is gone."""

    idle_seconds: float
    url: str = ""
    bodies: list[bytes] = field(default_factory=list)
    _ready: float = -1e9
    _last: float = -1e9
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def predict(self, body: bytes) -> dict[str, Any]:
        """A prediction for each instance, once the node is there."""
        with self._lock:
            self.bodies.append(body)
            now = time.monotonic()
            if now > self._last + self.idle_seconds:
                self._ready = now + WAKE_SECONDS
            self._last = max(now, self._ready)
        time.sleep(max(0.0, self._ready - now))
        return {"predictions": [0 for _ in json.loads(body)["instances"]]}

    def nodes(self) -> dict[str, Any]:
        """As pilotlight tells them."""
        now = time.monotonic()
        there = now <= self._last + self.idle_seconds
        starting = int(there and now < self._ready)
        entry = {
            "version": VERSION,
            "ready": int(there) - starting,
            "starting": starting,
            "draining": 0,
        }
        other = {"version": f"{MODEL}/versions/v0", "ready": 1, "starting": 0, "draining": 0}
        return {"versions": [other, entry], "pilots": []}


@contextmanager
def running_sleeper(idle_seconds: float) -> Iterator[Sleeper]:
    """The server on a free port, until the end of the block."""
    sleeper = Sleeper(idle_seconds)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Else the second of two small writes waits for the answer to the first.
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            told = {"/nodes": sleeper.nodes(), f"/v1/{MODEL}": {"defaultVersion": {"name": VERSION}}}
            self.answer(*((200, told[self.path]) if self.path in told else (404, {})))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            known = self.path == f"/v1/{MODEL}:predict"
            self.answer(*((200, sleeper.predict(body)) if known else (404, {"error": "no such model"})))

        def answer(self, status: int, document: Any) -> None:
            content = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    with Server(("127.0.0.1", 0), Handler) as server:
        sleeper.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield sleeper
        finally:
            server.shutdown()
            thread.join()
