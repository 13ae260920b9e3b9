"""A server that is asked to stop answers on for a while: load balancers need time to notice."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.bounds import HANG_SECONDS

# A program of its own: signals are for a process.
_PROGRAM = """
import sys
from serving.transport import http_server
from serving.config import ServerSettings
from serving.transport.event_loop import run_event_loop
from serving.transport.request_head import RequestHead

class Handler:
    max_body_bytes = 100

    def can_handle(self, method, path):
        return path == "/predict"

    def on_request_head(self, request):
        pass

    def on_request_complete(self, request):
        request.respond(200, request.body)

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})

async def main():
    server = http_server.make_http_server(
        app,
        settings=ServerSettings(),
        drain=30,
        handler=Handler(),
        on_stop_delay=lambda: print("delay", flush=True),
        on_stopping=lambda: print("stopping", flush=True),
        stop_delay=float(sys.argv[1]),
        stop_timeout=30,
    )
    listener = http_server.listen_tcp("127.0.0.1", 0)
    print(listener.getsockname()[1], flush=True)
    await server.serve(sockets=[listener])
    return server.exit_code

sys.exit(run_event_loop(main()))
"""


class Program:
    """The server, and clients of it whose connections stay open."""

    def __init__(self, delay: float) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(delay)], stdout=subprocess.PIPE, text=True
        )
        self.port = int(self.read_line())
        # It listens before it heeds signals.
        with self.client() as client:
            assert client.get("/").status_code == 200

    def read_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask_to_stop(self) -> float:
        self.process.send_signal(signal.SIGTERM)
        return time.monotonic()

    def wait(self) -> int:
        return self.process.wait(timeout=HANG_SECONDS)

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=f"http://127.0.0.1:{self.port}")


@pytest.fixture
def start() -> Iterator[type[Program]]:
    """Makes programs, which end with the test."""
    programs: list[Program] = []

    class Started(Program):
        def __init__(self, delay: float) -> None:
            super().__init__(delay)
            programs.append(self)

    yield Started
    for program in programs:
        with program.process as process:
            process.kill()


def test_clients_are_answered_and_leave(start: type[Program]) -> None:
    """Old connections and new ones, predictions and other requests; then no connection is taken."""
    program = start(1.0)
    with program.client() as old, program.client() as new:
        for path in ("/predict", "/"):
            assert "connection" not in old.post(path, content=b"12").headers
        began = program.ask_to_stop()
        assert program.read_line() == "delay"
        for client in (old, new):
            for path in ("/predict", "/", "/predict"):
                answer = client.post(path, content=b"12")
                assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        assert time.monotonic() - began < 1.0, "too slow to tell anything"

        assert program.read_line() == "stopping"
        assert time.monotonic() - began > 0.9
        assert program.wait() == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", program.port)).close()


def test_the_second_signal_ends_the_delay(start: type[Program]) -> None:
    """For those who wait at a terminal."""
    program = start(600.0)
    program.ask_to_stop()
    assert program.read_line() == "delay"
    program.ask_to_stop()
    assert program.read_line() == "stopping"
    assert program.wait() == 0


def test_without_a_delay_it_stops_at_once(start: type[Program]) -> None:
    """As before."""
    program = start(0.0)
    program.ask_to_stop()
    assert program.read_line() == "stopping"
    assert program.wait() == 0
