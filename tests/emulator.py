"""A real Cloud Storage emulator, and a server to put in front of it that fails on demand."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_numbers = itertools.count(1)


class Emulator:
    """An emulator at `url`, and what tests put into it."""

    def __init__(self, url: str) -> None:
        from google.auth.credentials import AnonymousCredentials
        from google.cloud.storage import Client

        self.url = url
        self._client = Client(
            project="tests",
            credentials=AnonymousCredentials(),  # type: ignore[no-untyped-call]
            client_options={"api_endpoint": url},
        )

    def bucket(self, stem: str = "bucket") -> str:
        """Create a bucket with a name of its own."""
        name = f"{stem}-{next(_numbers)}"
        self._client.create_bucket(name, retry=None)
        return name

    def create(self, name: str) -> None:
        """Create a bucket with this name, if there is none."""
        if not self._client.bucket(name).exists():
            self._client.create_bucket(name, retry=None)

    def put(self, uri: str, data: bytes = b"", *, encoding: str | None = None) -> None:
        """Create or replace the object `uri`; `encoding` is its Content-Encoding."""
        blob = self._blob(uri)
        blob.content_encoding = encoding
        blob.upload_from_string(data, retry=None)

    def get(self, uri: str) -> bytes:
        """The content of an object."""
        data: bytes = self._blob(uri).download_as_bytes(retry=None)
        return data

    def upload(self, folder: Path, uri: str) -> None:
        """Upload every file below `folder` to below `uri`."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put(f"{uri}/{path.relative_to(folder).as_posix()}", path.read_bytes())

    def _blob(self, uri: str) -> Any:
        bucket, _, name = uri.removeprefix("gs://").partition("/")
        return self._client.bucket(bucket).blob(name)


@contextmanager
def running_emulator() -> Iterator[Emulator]:
    """An emulator in a thread of this process, on a free port, with everything in memory."""
    from gcp_storage_emulator.server import create_server

    port = _free_port()
    server = create_server("127.0.0.1", port, in_memory=True)
    server.start()
    try:
        yield Emulator(f"http://127.0.0.1:{port}")
    finally:
        server.stop()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


@dataclass(frozen=True)
class Answer:
    """What a request is answered with."""

    status: int
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""


@dataclass
class Front:
    """A server before the emulator. `answer` is given the path of each request and a way to pass it on."""

    url: str
    answer: Callable[[str, Callable[[], Answer]], Answer] = lambda _, forward: forward()
    paths: list[str] = field(default_factory=list)

    def downloads(self) -> list[str]:
        """Paths of the requests for the content of an object, in order."""
        return [path for path in self.paths if "alt=media" in path]

    def fail(self, status: int, *, times: int, where: str = "") -> None:
        """Answer the next `times` requests whose path has `where` in it with `status`, then pass all on."""
        left = itertools.count(times, -1)

        def answer(path: str, forward: Callable[[], Answer]) -> Answer:
            return Answer(status) if where in path and next(left) > 0 else forward()

        self.answer = answer

    def replace(self, old: bytes, new: bytes) -> None:
        """Replace `old` by `new` in the body of every answer."""

        def answer(path: str, forward: Callable[[], Answer]) -> Answer:
            whole = forward()
            headers = [(name, value) for name, value in whole.headers if name.lower() != "content-length"]
            return Answer(whole.status, headers, whole.body.replace(old, new))

        self.answer = answer


@contextmanager
def running_front(upstream: str) -> Iterator[Front]:
    """A Front of the server at `upstream`, in threads of this process, on a free port."""
    host = urlsplit(upstream).netloc

    class Handler(BaseHTTPRequestHandler):
        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))

            def forward() -> Answer:
                connection = http.client.HTTPConnection(host)
                connection.request(self.command, self.path, body, dict(self.headers.items()))
                response = connection.getresponse()
                answer = Answer(response.status, response.getheaders(), response.read())
                connection.close()
                return answer

            front.paths.append(self.path)
            answer = front.answer(self.path, forward)
            self.send_response(answer.status)
            names = {name.lower() for name, _ in answer.headers}
            for name, value in answer.headers:
                self.send_header(name, value)
            if "content-length" not in names:
                self.send_header("Content-Length", str(len(answer.body)))
            with contextlib.suppress(BrokenPipeError):  # a client that was killed meanwhile
                self.end_headers()
                self.wfile.write(answer.body)

        do_GET = do_POST = do_PUT = do_DELETE = _handle  # noqa: N815

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            """Keep quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        front = Front(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield front
        finally:
            server.shutdown()
            thread.join()
