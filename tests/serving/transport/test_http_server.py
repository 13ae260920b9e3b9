from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from tests.bounds import HANG_SECONDS

# A server whose end hangs somewhere: a program of its own, for a test must not end with it.
_PROGRAM = """
import asyncio, sys, threading, time
from serving.transport import http_server
from serving.config import ServerSettings
from serving.transport.event_loop import run_event_loop

HANG = sys.argv[1]

def hang():
    time.sleep(1000)

async def app(scope, receive, send):
    assert scope["type"] == "lifespan"
    await receive()
    if HANG == "start":
        await send({"type": "lifespan.startup.failed", "message": "No."})
        return
    await send({"type": "lifespan.startup.complete"})
    print("up", flush=True)
    if HANG == "loop":
        hang()
    await receive()
    if HANG == "application":
        await asyncio.sleep(1000)
    if HANG == "thread":
        threading.Thread(target=hang).start()
    await send({"type": "lifespan.shutdown.complete"})

async def main():
    server = http_server.make_http_server(app, settings=ServerSettings(), drain=1, stop_timeout=1)
    listener = http_server.listen_tcp("127.0.0.1", 0)
    await server.serve(sockets=[listener])
    return server.exit_code

sys.exit(run_event_loop(main()))
"""


def started(hang: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, hang],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("hang", "where"), [("application", "LifespanOn.main"), ("thread", " in hang\n"), ("loop", " in hang\n")]
)
def test_whatever_hangs_a_server_ends_that_was_told_to(hang: str, where: str) -> None:
    """In its time, with a status that is an error, and what its threads did."""
    with started(hang) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        try:
            _, said = process.communicate(timeout=HANG_SECONDS)
        finally:
            process.kill()
        assert time.monotonic() - began > 1
    assert process.returncode == 1
    assert "Timeout" in said
    assert where in said


def test_a_start_that_fails_is_an_error_like_others() -> None:
    """With the status 1, and without a traceback."""
    with started("start") as process:
        _, said = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 1
    assert "No." in said
    assert "Traceback" not in said
