"""The pilot of another interpreter: what connects to it, and what it has when things run out."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from serving.predictor import PROGRAM, pilot_command
from serving.runtimes.external import predictor_process
from serving.runtimes.external.predictor_process import PredictorProcess
from tests.bounds import HANG_SECONDS
from tests.server import until


@dataclass(frozen=True)
class Pilot:
    """One that imports nothing, so that it is there at once."""

    process: subprocess.Popen[bytes]
    address: str
    link: socket.socket

    @property
    def pid(self) -> int:
        return self.process.pid

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def children(self) -> list[int]:
        """Its predictors, also those that have ended and were not waited for."""
        text = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return list(map(int, text.split()))

    def predictor(self) -> PredictorProcess:
        return PredictorProcess("/nowhere/python", self.address)  # a cold one cannot be started


@pytest.fixture
def pilot(tmp_path: Path) -> Iterator[Pilot]:
    """A pilot that is ready to fork."""
    with started(tmp_path / "s") as found:
        yield found


@contextlib.contextmanager
def started(path: Path, *preload: str) -> Iterator[Pilot]:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    link, theirs = socket.socketpair()
    setup = {
        "preload": preload,
        "server": os.getpid(),
        "listener": listener.fileno(),
        "link": theirs.fileno(),
    }
    with listener, theirs:
        process = subprocess.Popen(
            [*pilot_command(sys.executable), json.dumps(setup)],
            pass_fds=(listener.fileno(), theirs.fileno()),
        )
    with link:
        try:
            link.settimeout(30)
            assert "lit" in json.loads(link.recv(1000))
            yield Pilot(process, str(path), link)
        finally:
            process.kill()
            process.wait()


def connected(pilot: Pilot) -> socket.socket:
    one = socket.socket(socket.AF_UNIX)
    one.connect(pilot.address)
    return one


def test_a_connection_that_sends_nothing_delays_nobody(pilot: Pilot) -> None:
    """Not even a hundred of them: the oldest are closed."""
    with contextlib.ExitStack() as silent:
        for _ in range(100):
            silent.enter_context(connected(pilot))
        began = time.monotonic()

        predictor = pilot.predictor()

        assert time.monotonic() - began < predictor_process._PILOT_TIMEOUT
        assert predictor.pid in pilot.children()
        predictor.close()


def test_what_is_no_request_leaves_nothing_behind(pilot: Pilot) -> None:
    """A hangup, a byte without descriptors, too few descriptors and too many."""
    pilot.predictor().close()
    until(lambda: not pilot.children(), "the first has been waited for")
    before = pilot.descriptors()

    for count in (None, 0, 1, 5):
        with connected(pilot) as one, contextlib.suppress(ConnectionError):
            if count is not None:
                socket.send_fds(one, [b"n"], [2] * count) if count else one.send(b"n")
                one.settimeout(10)
                assert one.recv(1) == b""

    until(lambda: pilot.descriptors() == before, "as many descriptors as before")
    pilot.predictor().close()


def test_a_pilot_without_descriptors_goes_on_when_there_are_some(pilot: Pilot) -> None:
    """Meanwhile it takes no connection."""
    used = pilot.descriptors()
    limits = resource.prlimit(pilot.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pilot.pid, resource.RLIMIT_NOFILE, (used, limits[1]))
    with connected(pilot), connected(pilot):
        time.sleep(0.2)  # it fails to accept them
        assert pilot.process.poll() is None
        resource.prlimit(pilot.pid, resource.RLIMIT_NOFILE, limits)

        predictor = pilot.predictor()

    predictor.close()


def test_a_predictor_that_cannot_be_forked_is_started_cold(pilot: Pilot) -> None:
    """The pilot says so by closing the connection, and goes on."""
    _, most = resource.prlimit(pilot.pid, resource.RLIMIT_NOFILE)
    with connected(pilot) as one:
        # Room for the connection, and for none of the descriptors that come with it.
        resource.prlimit(pilot.pid, resource.RLIMIT_NOFILE, (pilot.descriptors() + 1, most))
        predictor = PredictorProcess(sys.executable, pilot.address)
        assert predictor.pid not in pilot.children()
        one.close()
    resource.prlimit(pilot.pid, resource.RLIMIT_NOFILE, (most, most))
    predictor.close()
    pilot.predictor().close()


def test_a_killed_or_stopped_pilot_is_not_waited_for_long(
    pilot: Pilot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Predictors start cold instead."""
    monkeypatch.setattr(predictor_process, "_PILOT_TIMEOUT", 0.3)
    os.kill(pilot.pid, signal.SIGSTOP)
    PredictorProcess(sys.executable, pilot.address).close()

    os.kill(pilot.pid, signal.SIGKILL)
    PredictorProcess(sys.executable, pilot.address).close()


def test_predictors_outlive_their_pilot_but_not_their_node(pilot: Pilot) -> None:
    """Their lifeline is held by the node; nobody tells how they end."""
    predictor = pilot.predictor()
    os.kill(pilot.pid, signal.SIGKILL)
    pilot.process.wait()
    assert Path(f"/proc/{predictor.pid}").exists()

    predictor.close()

    until(lambda: _gone(predictor.pid), "the predictor is gone")


def test_the_end_of_the_server_is_the_end_of_a_pilot(pilot: Pilot) -> None:
    """It ends when its link is closed."""
    pilot.link.close()

    assert pilot.process.wait(HANG_SECONDS) == 0


def test_a_pilot_with_threads_says_that_it_must_not_fork(tmp_path: Path) -> None:
    """Nodes of such an interpreter start cold."""
    (tmp_path / "starts_threads.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    link, theirs = socket.socketpair()
    listener = socket.socket(socket.AF_UNIX)
    setup = {
        "preload": ["no_such_module", "starts_threads"],
        "server": os.getpid(),
        "listener": listener.fileno(),
        "link": theirs.fileno(),
    }
    code = (
        f"import sys, runpy; sys.path.append({str(tmp_path)!r}); sys.argv = sys.argv[1:]; "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    with link, theirs, listener:
        process = subprocess.Popen(
            [sys.executable, "-c", code, PROGRAM, "pilot", json.dumps(setup)],
            pass_fds=(listener.fileno(), theirs.fileno()),
        )
        link.settimeout(30)

        told = json.loads(link.recv(1000))

    assert "2 in all" in told["failed"]
    assert process.wait(HANG_SECONDS) == 1


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
