"""A server that answers as Kubernetes' API server does when it is asked for the scale of one Deployment."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.certificates import write_certificate

SCALE_PATH = "/apis/apps/v1/namespaces/serving/deployments/pilotlight/scale"
_HOST = "127.0.0.1"


@dataclass
class FakeApiServer:
    """`refused` are statuses by method, 0 for no answer at all; `text` is answered in place of the scale.

    `asked` has the method, path and body of each request.
    """

    port: int
    replicas: int | None = 2
    refused: dict[str, int] = field(default_factory=dict)
    text: str = ""
    asked: list[tuple[str, str, Any]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    is_over: threading.Event = field(default_factory=threading.Event)

    @property
    def environment(self) -> Mapping[str, str]:
        """What a pod has of it."""
        return {"KUBERNETES_SERVICE_HOST": _HOST, "KUBERNETES_SERVICE_PORT": str(self.port)}

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        length = int(handler.headers.get("content-length", 0))
        body = json.loads(handler.rfile.read(length)) if length else None
        self.asked.append((handler.command, handler.path, body))
        self.tokens.append(handler.headers["authorization"])
        status = self.refused.get(handler.command, 200)
        if not status:
            self.is_over.wait(30)
            return
        answer: Any = {"kind": "Status", "status": "Failure", "message": "no, because", "code": status}
        if status == 200:
            if body is not None:
                self.replicas = body["spec"]["replicas"]
            spec = {} if self.replicas is None else {"replicas": self.replicas}
            metadata = {"name": "pilotlight", "namespace": "serving", "resourceVersion": "77"}
            answer = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": metadata, "spec": spec}
        sent = (self.text or json.dumps(answer)).encode()
        handler.send_response(status)
        handler.send_header("content-type", "application/json")
        handler.send_header("content-length", str(len(sent)))
        handler.end_headers()
        handler.wfile.write(sent)


def write_credentials(folder: Path) -> None:
    """What a pod has in a folder, and the server's certificate."""
    write_certificate(folder)
    (folder / "ca.crt").write_bytes((folder / "cert.pem").read_bytes())
    (folder / "token").write_text("the-token")


@contextlib.contextmanager
def running_api_server(credentials: Path) -> Iterator[FakeApiServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            fake.answer(self)

        def do_PATCH(self) -> None:
            fake.answer(self)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer((_HOST, 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(credentials / "cert.pem", credentials / "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    fake = FakeApiServer(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield fake
    finally:
        fake.is_over.set()
        server.shutdown()
        server.server_close()
        thread.join()
