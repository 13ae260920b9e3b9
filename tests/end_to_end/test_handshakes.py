"""TLS handshakes that do not go on, against a real server: HTTP and gRPC."""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.bounds import HANG_SECONDS
from tests.calls import grpc
from tests.certificates import write_certificate
from tests.server import Server, running_server, until

CROWD = 400
HELLO = b"\x16\x03\x01\x02\x00"  # and no more of it


@contextmanager
def secure_server(folder: Path, *flags: str) -> Iterator[Server]:
    """A server with a certificate, for HTTP and gRPC."""
    write_certificate(folder)
    files = ("--tls-cert", str(folder / "cert.pem"), "--tls-key", str(folder / "key.pem"))
    with running_server(folder / "state", *files, "--grpc-port=0", *flags) as server:
        yield server


def address(server: Server, protocol: str) -> tuple[str, int]:
    host, _, port = (server.grpc if protocol == "grpc" else server.url.partition("://")[2]).partition(":")
    return host, int(port)


def answers(server: Server, folder: Path, protocol: str) -> bool:
    """Whether a new connection is answered."""
    if protocol == "http":
        context = ssl.create_default_context(cafile=folder / "cert.pem")
        return httpx.get(f"{server.url}/healthz", verify=context, timeout=30).status_code == 200
    credentials = grpc.ssl_channel_credentials((folder / "cert.pem").read_bytes())
    with grpc.secure_channel(server.grpc, credentials) as channel:
        grpc.channel_ready_future(channel).result(timeout=HANG_SECONDS)
    return True


def connect(server: Server, protocol: str, count: int, stack: ExitStack) -> list[socket.socket]:
    """Clients that are silent, or stop after they have begun."""
    clients = [stack.enter_context(socket.create_connection(address(server, protocol))) for _ in range(count)]
    for client in clients[::2]:
        client.send(HELLO)
    return clients


def ended(clients: list[socket.socket]) -> int:
    """How many of them the server has closed."""
    poll = select.poll()
    for client in clients:
        poll.register(client, select.POLLIN)
    return len(poll.poll(0))


def open_files(server: Server) -> int:
    return sum(1 for _ in Path(f"/proc/{server.process.pid}/fd").iterdir())


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_crowd_that_never_begins(protocol: str, tmp_path: Path) -> None:
    """Others are served beside it, and after `header_timeout` nothing of it is left."""
    with ExitStack() as stack, secure_server(tmp_path, "--header-timeout=5") as server:
        assert answers(server, tmp_path, protocol)
        before = open_files(server)
        clients = connect(server, protocol, CROWD, stack)
        until(lambda: open_files(server) >= before + CROWD - 5, "all are accepted")
        assert answers(server, tmp_path, protocol)
        assert ended(clients) == 0
        until(lambda: ended(clients) == CROWD, "all are closed")
        until(lambda: open_files(server) <= before + 2, "their files are free again")
        assert answers(server, tmp_path, protocol)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_handshakes_count_among_the_connections(protocol: str, tmp_path: Path) -> None:
    """What is beyond `max_connections` is closed at once."""
    with (
        ExitStack() as stack,
        secure_server(tmp_path, "--header-timeout=60", "--max-connections=40") as server,
    ):
        clients = connect(server, protocol, 60, stack)
        until(lambda: ended(clients) >= 20, "those beyond are closed")
        # Over HTTP a crowd makes room: those that have been at it for longest go.
        assert ended(clients) <= (24 if protocol == "http" else 20)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_end_does_not_wait_for_handshakes(protocol: str, tmp_path: Path) -> None:
    """They are given up."""
    with ExitStack() as stack, secure_server(tmp_path, "--header-timeout=300") as server:
        connect(server, protocol, 100, stack)
        assert answers(server, tmp_path, protocol)
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 20
