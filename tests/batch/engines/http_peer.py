"""Serves what stands in for an engine."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit


class Peer(Protocol):
    url: str

    def answer(self, method: str, path: str, body: str) -> tuple[int, Any]:
        """The status and the JSON of an answer; that of a redirect is where it goes to."""


P = TypeVar("P", bound=Peer)


@contextmanager
def serve(peer: P) -> Iterator[P]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode()
            status, found = peer.answer(self.command, urlsplit(self.path).path, body)
            self.send_response(status)
            if status == 302:
                self.send_header("Location", found)
            data = b"" if status == 302 else json.dumps(found).encode()
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_PATCH = do_POST = do_GET  # noqa: N815  the names that http.server looks for

        def log_message(self, *_: object) -> None:
            """A test needs none."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    peer.url = f"127.0.0.1:{server.server_port}"
    try:
        yield peer
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
