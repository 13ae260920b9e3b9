"""The process of a pilot, mostly without a pool."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autoscaler import linux
from autoscaler.pilot import PilotSetup
from autoscaler.pools.local_pool import LocalPool
from autoscaler.processes import OrphanReaper
from tests.autoscaler.pool import PATIENT, TINY, History, children, ready_pilots, run
from tests.bounds import HANG_SECONDS
from tests.server import until


@pytest.fixture
def link() -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """A pilot without a pool, and its socket."""
    adopted = linux.set_subreaper(True)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    setup = PilotSetup(("tests.autoscaler.nodes",), theirs.fileno(), os.getpid())
    process = subprocess.Popen(
        [sys.executable, "-m", "autoscaler.pilot", setup.to_argument()],
        pass_fds=[theirs.fileno()],
        start_new_session=True,
    )
    theirs.close()
    ours.settimeout(10)
    try:
        yield process, ours
    finally:
        ours.close()
        process.kill()
        process.wait()
        linux.set_subreaper(adopted)


@pytest.fixture
def many_files() -> Iterator[None]:
    """What is opened now has a number that `select` does not take, as in a server with a thousand clients."""
    with contextlib.ExitStack() as files:
        for _ in range(1024):
            files.enter_context(Path(os.devnull).open())
        yield


def test_a_pilot_of_a_server_with_a_thousand_connections(
    many_files: None, link: tuple[subprocess.Popen[bytes], socket.socket]
) -> None:
    """It goes on after its spare has been used."""
    _, ours = link
    assert json.loads(ours.recv(1 << 16)).keys() == {"lit"}
    spare = json.loads(ours.recv(1 << 16))["spare"]
    os.kill(spare, signal.SIGKILL)

    assert json.loads(ours.recv(1 << 16))["spare"] != spare


def test_a_pilot_ends_when_the_socket_does(link: tuple[subprocess.Popen[bytes], socket.socket]) -> None:
    """And so does its spare."""
    process, ours = link
    assert json.loads(ours.recv(1 << 16)).keys() == {"lit"}
    spare = json.loads(ours.recv(1 << 16))["spare"]
    until(lambda: spare in children(), "the spare is ours")
    ours.close()

    assert process.wait(timeout=HANG_SECONDS) == 0
    assert os.waitstatus_to_exitcode(os.waitpid(spare, 0)[1]) == 0


def test_a_pilot_ends_on_request(link: tuple[subprocess.Popen[bytes], socket.socket]) -> None:
    """SIGTERM; a spare is left that ends with the socket."""
    process, ours = link
    ours.recv(1 << 16)
    spare = json.loads(ours.recv(1 << 16))["spare"]
    until(lambda: spare in children(), "the spare is ours")
    process.terminate()

    assert process.wait(timeout=HANG_SECONDS) == -signal.SIGTERM
    ours.close()
    assert os.waitstatus_to_exitcode(os.waitpid(spare, 0)[1]) == 0


def test_ctrl_c_is_none_of_a_pilots_business() -> None:
    """It is in a session of its own, and its spare too."""

    async def main(pool: LocalPool, history: History) -> None:
        pool.set_wanted_pilots([TINY])
        (status,) = await ready_pilots(pool)

        assert os.getsid(status.pid or 0) == status.pid
        spare = status.spare or 0
        await asyncio.to_thread(until, lambda: os.getsid(spare) == spare, "its spare has left its session")

    run(main)


def test_strays_are_reaped() -> None:
    """Orphans that left their group come to the server; those that have ended are not kept for long."""
    adopted = linux.set_subreaper(True)
    try:
        before = children()
        subprocess.run(["sh", "-c", "setsid sleep 0.01 &"], check=True)
        until(lambda: children() - before, "the orphan is ours")
        strays = OrphanReaper()
        time.sleep(0.2)
        strays.reap()
        assert children() - before
        strays.reap()
        assert not children() - before
    finally:
        linux.set_subreaper(adopted)


def test_a_pool_reaps_strays() -> None:
    """Now and then, as long as it is there."""

    async def main(pool: LocalPool, history: History) -> None:
        before = children()
        await asyncio.to_thread(subprocess.run, ["sh", "-c", "setsid sleep 0.5 &"], check=True)
        await asyncio.to_thread(until, lambda: children() - before, "the orphan is ours")
        await asyncio.to_thread(until, lambda: not children() - before, "it is reaped")

    run(main, timing=replace(PATIENT, housekeeping=0.05))
