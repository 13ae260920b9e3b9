"""What runs in a container of the tests: a server by the contract, which does what its instances say."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

BODIES: list[Any] = []
# Whom two requests meet at that are answered at the same time.
MEETING = threading.Barrier(2)


def predict(instance: Any) -> Any:
    """The prediction for an instance."""
    match instance:
        case "environment":
            return {key: value for key, value in os.environ.items() if key.startswith(("AIP_", "OWN_"))}
        case "arguments":
            return sys.argv[1:]
        case "files":
            return sorted(path.name for path in Path(os.environ["AIP_STORAGE_URI"]).iterdir())
        case "body":
            return BODIES[-1]
        case "pid":
            return os.getpid()
        case "say":
            print("said in the container", flush=True)
        case "die":
            print("about to die", flush=True)
            os._exit(3)
        case "die loudly":
            print("x" * 100_000, flush=True)
            os._exit(3)
        case "meet":
            MEETING.wait(20)
            return "met"
        case "hang":
            time.sleep(60)
        case "much":
            return "x" * 2_000_000
    return instance


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers by the contract."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """The health."""
        self.answer(200 if self.path == os.environ["AIP_HEALTH_ROUTE"] else 404, {})

    def do_POST(self) -> None:
        """A prediction."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        BODIES.append(body)
        if self.path != os.environ["AIP_PREDICT_ROUTE"]:
            self.answer(404, {"error": "no such path"})
        elif isinstance(body["instances"][0], int) and body["instances"][0] >= 400:
            self.answer(body["instances"][0], {"error": "as was asked"})
        elif body["instances"][0] == "endless":
            self.send_response(200)
            self.end_headers()
            self.close_connection = True
            with contextlib.suppress(OSError):
                for _ in range(1000):
                    self.wfile.write(b" " * (1 << 20))
        elif body["instances"][0] == "nonsense":
            self.answer(200, {"outputs": []})
        else:
            self.answer(200, {"predictions": [predict(one) for one in body["instances"]]})

    def answer(self, status: int, found: Any) -> None:
        """Send an answer."""
        content = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nothing: what is printed is looked at."""


if __name__ == "__main__":
    http.server.ThreadingHTTPServer(("", int(os.environ["AIP_HTTP_PORT"])), Handler).serve_forever()
