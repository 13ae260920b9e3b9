"""How a container's health is asked for: whatever it answers, the question ends."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Iterable, Iterator

import pytest

from serving.runtimes.container.running_container import is_healthy_at

OK, INTERIM = b"HTTP/1.1 200 OK\r\nServer: x\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"
SECONDS = 0.5


@contextlib.contextmanager
def answering(parts: Iterable[bytes], pause: float = 0) -> Iterator[tuple[str, int]]:
    """The address of a server that answers its first connection with these parts, and then waits."""
    done = threading.Event()

    def answer(listener: socket.socket) -> None:
        with contextlib.suppress(OSError), listener.accept()[0] as connection:
            for part in parts:
                if done.wait(pause):
                    return
                connection.sendall(part)
            done.wait(60)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            done.set()
            thread.join()


@pytest.mark.parametrize(
    ("parts", "healthy"),
    [
        ([OK], True),
        ([INTERIM, INTERIM, OK], True),
        ([OK.replace(b"\r\n", b"\n")], True),
        ([bytes([one]) for one in OK], True),
        (itertools.chain([OK], itertools.repeat(b"x" * 65536)), True),
        ([b"HTTP/1.1 503 Busy\r\n\r\n"], False),
        ([INTERIM, b"HTTP/1.1 404 Not Found\r\n\r\n"], False),
        ([b"SSH-2.0-OpenSSH\r\n\r\n"], False),
    ],
    ids=["plain", "interim", "bare", "in-parts", "endless-body", "busy", "interim-missing", "no-http"],
)
def test_the_head_of_the_answer_decides(parts: Iterable[bytes], healthy: bool) -> None:
    with answering(parts) as address:
        began = time.monotonic()

        assert is_healthy_at(address, "/health", 30) == healthy

    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("parts", "pause"),
    [
        ([], 0.0),
        ((b"HTTP/1.1 200 OK\r\n", *[b"x"] * 1000), SECONDS / 10),
        ([INTERIM] * 1000, SECONDS / 10),
    ],
    ids=["silent", "dripping", "interim"],
)
def test_an_answer_that_never_ends_is_none(parts: Iterable[bytes], pause: float) -> None:
    with answering(parts, pause) as address:
        began = time.monotonic()

        assert not is_healthy_at(address, "/health", SECONDS)

        assert SECONDS <= time.monotonic() - began < SECONDS + 10


@pytest.mark.parametrize("part", [INTERIM, b"x" * 100], ids=["interim", "header"])
def test_of_an_endless_head_so_much_is_read(part: bytes) -> None:
    with answering(itertools.repeat(part)) as address:
        began = time.monotonic()

        assert not is_healthy_at(address, "/health", 600)

    assert time.monotonic() - began < 60


def test_nobody_there_is_not_healthy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()

    assert not is_healthy_at(address, "/health", SECONDS)
