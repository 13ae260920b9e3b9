"""A small BigQuery: streaming inserts into one table, behind Google's own client."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class BigQuery:
    """The server at `url`. `rows` are what came, by insert id; while `failing` is set, that is the answer.

    Rows whose `raw_data` has one of the words in `invalid` are refused, and with them their request; one that
    has one of those in `body_too_large` gets its request a 413.
    """

    url: str = ""
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    received: int = 0
    requests: int = 0
    paths: set[str] = field(default_factory=set)
    failing: int = 0
    invalid: set[str] = field(default_factory=set)
    too_large: set[str] = field(default_factory=set)

    def insert(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """The answer to an insertAll."""
        self.requests += 1
        self.paths.add(path)
        rows = body["rows"]
        if self.failing:
            return self.failing, {"error": {"code": self.failing, "message": "it is down"}}
        if any(row["json"]["raw_data"] in self.too_large for row in rows):
            return 413, {"error": {"code": 413, "message": "it is too large"}}
        bad = [index for index, row in enumerate(rows) if row["json"]["raw_data"] in self.invalid]
        if bad:
            reasons = [("invalid" if index in bad else "stopped") for index in range(len(rows))]
            errors = [
                {"index": index, "errors": [{"reason": reason, "message": f"it is {reason}"}]}
                for index, reason in enumerate(reasons)
            ]
            return 200, {"insertErrors": errors}
        self.received += len(rows)
        for row in rows:
            known = self.rows.setdefault(row["insertId"], row["json"])
            assert known == row["json"], "another row with the same id"
        return 200, {"kind": "bigquery#tableDataInsertAllResponse"}


@contextmanager
def running_bigquery() -> Iterator[BigQuery]:
    """It, in threads of this process, on a free port."""
    found = BigQuery()
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                import gzip

                body = gzip.decompress(body)
            with lock:
                status, answer = found.insert(self.path, json.loads(body))
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
