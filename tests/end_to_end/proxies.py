"""Real proxies as they stand before a server, with a wire between the two that remembers every byte."""

from __future__ import annotations

import re
import selectors
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent

import httptools
import pytest

from loadtests.bench.targets.servers import find_free_port
from tests.server import until

# The seconds after which a client is given up, so that no attack takes long; servers are not.
PATIENCE = 0.5
SERVER_PATIENCE = 10


@dataclass
class Answers:
    """The final answers in a stream of bytes that a server has sent, one after the other."""

    statuses: list[int] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    def read(self, stream: bytes) -> Answers:
        """Take the answers out of it."""
        self._parser = httptools.HttpResponseParser(self)
        with suppress(httptools.HttpParserUpgrade):
            self._parser.feed_data(stream)
        return self

    def on_message_begin(self) -> None:
        self._body = b""

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        if (status := self._parser.get_status_code()) >= 200:
            self.statuses.append(status)
            self.bodies.append(self._body)


class Wire:
    """Passes connections on to a server, and keeps what that has answered on each."""

    def __init__(self, server: tuple[str, int]) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._answered: list[bytearray] = []
        self._sent: list[bytearray] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def answers(self) -> list[Answers]:
        """The server's answers so far, by connection."""
        return [Answers().read(bytes(stream)) for stream in list(self._answered)]

    def sent(self) -> bytes:
        """What the proxy has sent so far."""
        return b"\n--\n".join(bytes(stream) for stream in list(self._sent))

    def close(self) -> None:
        """End all connections."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        self._listener.settimeout(0.1)
        while not self._over.is_set():
            with suppress(TimeoutError):
                client, _ = self._listener.accept()
                thread = threading.Thread(target=self._pass, args=(client,))
                self._threads.append(thread)
                thread.start()

    def _pass(self, client: socket.socket) -> None:
        sent, answered = bytearray(), bytearray()
        self._sent.append(sent)
        self._answered.append(answered)
        with client, socket.create_connection(self._server) as server, selectors.DefaultSelector() as ready:
            ready.register(client, selectors.EVENT_READ, (server, sent))
            ready.register(server, selectors.EVENT_READ, (client, answered))
            with suppress(OSError):
                while not self._over.is_set():
                    for key, _ in ready.select(0.1):
                        assert isinstance(key.fileobj, socket.socket)
                        if not (data := key.fileobj.recv(1 << 16)):
                            return
                        other, kept = key.data
                        kept += data
                        other.sendall(data)


@dataclass
class Proxy:
    """A proxy that runs, and how many requests it says to have sent on."""

    port: int
    wire: Wire
    log: Path
    sent_on: re.Pattern[str]

    def requests(self) -> int:
        """How many requests it has sent on so far, as it sees it."""
        return len(self.sent_on.findall(self.log.read_text()))

    def ask(self, request: bytes) -> bytes:
        """What comes back for bytes, until the connection ends."""
        answer = bytearray()
        with socket.create_connection(("127.0.0.1", self.port), timeout=2 * SERVER_PATIENCE) as client:
            with suppress(OSError):  # it has seen enough
                client.sendall(request)
            with suppress(ConnectionResetError):
                while data := client.recv(1 << 16):
                    answer += data
        return bytes(answer)


@contextmanager
def running_proxy(name: str, url: str, folder: Path) -> Iterator[Proxy]:
    """A proxy before the server at a URL; the test is skipped where there is none."""
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed (Debian: apt-get install {_PACKAGES[name]})")
    host, _, port = url.removeprefix("http://").partition(":")
    with ExitStack() as stack, closing(Wire((host, int(port)))) as wire:
        own, log = find_free_port(), folder / f"{name}.log"
        config = folder / f"{name}.conf"
        config.write_text(
            dedent(_CONFIGS[name]).format(
                own=own,
                server=wire.port,
                patience=int(1000 * PATIENCE),
                server_patience=SERVER_PATIENCE,
                log=log,
                folder=folder,
            )
        )
        with log.open("w") as output:
            process = stack.enter_context(
                subprocess.Popen([name, *_FLAGS[name], str(config)], stdout=output, stderr=subprocess.STDOUT)
            )
        stack.callback(process.terminate)

        def listens() -> bool:
            assert process.poll() is None, log.read_text()
            with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", own)):
                return True
            return False

        until(listens, f"{name} listens")
        yield Proxy(own, wire, log, _SENT_ON[name])


_PACKAGES = {"nginx": "nginx-light", "haproxy": "haproxy"}
_FLAGS = {"nginx": ("-c",), "haproxy": ("-db", "-f")}
# Lines that tell of a request for which a server was asked.
_SENT_ON = {
    "nginx": re.compile(r"^sent on: \d+", re.MULTILINE),
    "haproxy": re.compile(r"^sent on: (?!<NOSRV>)", re.MULTILINE),
}
_CONFIGS = {
    "nginx": """\
        daemon off;
        master_process off;
        pid {folder}/nginx.pid;
        error_log {folder}/nginx-errors.log;
        events {{}}
        http {{
            log_format sent 'sent on: $upstream_status "$request" $status';
            access_log {log} sent;
            client_body_temp_path {folder}/body;
            proxy_temp_path {folder}/proxy;
            fastcgi_temp_path {folder}/fastcgi;
            uwsgi_temp_path {folder}/uwsgi;
            scgi_temp_path {folder}/scgi;
            client_header_timeout {patience}ms;
            client_body_timeout {patience}ms;
            keepalive_timeout {patience}ms;
            lingering_close off;
            upstream server {{
                server 127.0.0.1:{server};
                keepalive 4;
            }}
            server {{
                listen 127.0.0.1:{own};
                location / {{
                    proxy_pass http://server;
                    proxy_http_version 1.1;
                    proxy_request_buffering off;
                    proxy_next_upstream off;
                    proxy_read_timeout {server_patience}s;
                    proxy_set_header Connection "";
                    proxy_set_header Host 127.0.0.1;
                }}
            }}
        }}
        """,
    "haproxy": """\
        global
            log stdout format raw local0
        defaults
            mode http
            log global
            log-format "sent on: %s %ST %tsc %{{+Q}}r"
            retries 0
            timeout connect {server_patience}s
            timeout client {patience}ms
            timeout server {server_patience}s
            timeout http-request {patience}ms
            timeout http-keep-alive {patience}ms
        frontend all
            bind 127.0.0.1:{own}
            default_backend server
        backend server
            http-reuse always
            server first 127.0.0.1:{server}
        """,
}
