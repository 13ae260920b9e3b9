"""A key of a service account, for clients of Google that insist on one."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa


@contextmanager
def running_credentials(folder: Path) -> Iterator[Path]:
    """The file of a key in this folder, and what gives tokens for it while the block runs."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Tokens)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    file = folder / "credentials.json"
    document = {
        "type": "service_account",
        "project_id": "tests",
        "private_key_id": "1",
        "private_key": pem.decode(),
        "client_id": "1",
        "client_email": "tests@localhost",
        "token_uri": f"http://127.0.0.1:{server.server_port}/token",
    }
    file.write_text(json.dumps(document))
    try:
        yield file
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Tokens(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = json.dumps({"access_token": "none", "expires_in": 3600, "token_type": "Bearer"}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass
