"""The pool of processes, with processes that do nothing but what a test needs: one suite for all its ways."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoscaler import linux, machine
from autoscaler.node_memory import Mark
from autoscaler.pools import Node, NodeState, node_pipes
from autoscaler.pools.local_pool import LocalPool
from autoscaler.pools.timing import PoolTiming
from tests.autoscaler import pool as pools
from tests.autoscaler.pool import History, Main, ask, children, ready_pilots, spec
from tests.bounds import HANG_SECONDS
from tests.server import until

Run = Callable[..., None]
FOLDER = Path.cwd()


@pytest.fixture(params=["forked", "cold", "elsewhere"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How nodes are started; "elsewhere" is where there is nothing of what only Linux has."""
    way: str = request.param
    if way == "elsewhere":
        monkeypatch.setattr(linux, "AVAILABLE", False)
    return way


@pytest.fixture
def nohup() -> Iterator[None]:
    """This process ignores SIGHUP, as under `nohup`, and so do those that it starts."""
    usual = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, usual)


@pytest.fixture
def run(way: str) -> Run:
    """Runs a test with a pool of that way."""

    def run(main: Main, *, drain: float = 10, timing: PoolTiming = pools.PATIENT) -> None:
        async def checked(pool: LocalPool, history: History) -> None:
            await main(pool, history)
            assert all(node.forked == (way == "forked") for node in history.nodes.values() if node.pid)

        pools.run(checked, drain=drain, pilots="off" if way == "cold" else "auto", timing=timing)

    return run


def test_a_node_starts_serves_and_stops(run: Run) -> None:
    """It gets its arguments and environment, says itself when it is ready, and ends on request."""

    async def main(pool: LocalPool, history: History) -> None:
        begin = time.monotonic()
        await pool.scale(spec("echo", word="hello"), 1)
        (node,) = pool.nodes("v")
        assert node.state is NodeState.STARTING
        await history.until(NodeState.READY)

        assert node.report == {"pid": node.pid, "given": "hello", "variable": "as given"}
        assert begin <= node.asked_at < (node.ready_at or 0) <= time.monotonic()
        assert node.pid in children()
        assert await ask(node, "world") == "hello world"
        assert pool.nodes("other") == []

        await pool.scale(spec("echo", word="hello"), 0)
        await history.until(NodeState.GONE)

        assert pool.nodes("v") == []
        assert node.reason == "The node ended with exit code 0."
        assert (node.crashed, node.permanent_failure, node.gone.is_set()) == (False, False, True)
        assert history.states(node) == [
            NodeState.STARTING,
            NodeState.READY,
            NodeState.DRAINING,
            NodeState.GONE,
        ]

    run(main)


def test_a_node_is_measured(run: Run) -> None:
    """Its memory soon after it is ready, what it computes at any time; nothing once it is gone."""

    async def main(pool: LocalPool, history: History) -> None:
        await pool.scale(spec("echo", word="a"), 1)
        (node,) = await history.until(NodeState.READY)
        await asyncio.to_thread(until, lambda: node.memory, "its memory is measured")
        pid = node.pid or 0

        assert node.memory is not None
        assert 1 << 20 < node.memory.private <= node.memory.proportional < 1 << 26
        seconds = pool.cpu_seconds(node)
        assert seconds is not None
        assert 0 <= seconds < 10
        assert (pool.measure_memory([pid]) or node.memory).private > 1 << 20

        await pool.scale(spec("echo", word="a"), 0)
        await node.gone.wait()
        assert pool.cpu_seconds(node) is None
        assert pool.measure_memory([pid]) is None

    run(main)


@pytest.mark.usefixtures("nohup")
def test_a_node_is_a_process_of_its_own(run: Run, way: str, tmp_path: Path) -> None:
    """What it was born with is its own or as usual: nothing tells how it was started."""
    large: dict[str, Any] = {"text": "x" * 200_000, "numbers": [1, 2.5, None]}

    async def main(pool: LocalPool, history: History) -> None:
        environment = {**os.environ, "ONLY": "here", "PYTHONHASHSEED": "7"}
        await pool.scale(spec("tell", environment=environment, **large), 2)
        first, second = (node.report for node in await history.until(NodeState.READY, 2))

        assert first["arguments"] == large
        assert first["environment"] == environment
        assert first["folder"] == str(FOLDER)
        assert len(first["argv"]) == 1
        assert first["stdin"] == "/dev/null"
        assert first["output"][0] == first["output"][1]
        assert first["output"][0].startswith("pipe:")
        assert first["output"] != second["output"]
        assert first["parent"] == os.getpid()
        assert first["leads"] is True
        assert first["board"] == 4
        assert first["name"] == "pilotlight-node"
        assert first["oom"] == "500"
        assert first["random"] != second["random"]
        usual = {signal.SIGPIPE, signal.SIGXFSZ}
        assert first["signals"]["SigBlk"] == 0
        # Those above are the C library's own, as they were where the tests began.
        ignored = first["signals"]["SigIgn"] & ((1 << (signal.SIGSYS - 1)) - 1)
        assert ignored == sum(1 << (number - 1) for number in usual)
        caught = {signal.SIGINT, signal.SIGTERM}
        assert first["signals"]["SigCgt"] & 0xFFFF == sum(1 << (number - 1) for number in caught)

    run(main)


def test_scaling_reaches_a_number(run: Run) -> None:
    """Up and down, counting those that start; versions are apart."""

    async def main(pool: LocalPool, history: History) -> None:
        wanted = spec("echo", word="a")
        await asyncio.gather(pool.scale(wanted, 2), pool.scale(wanted, 2), pool.scale(wanted, 2))
        await pool.scale(spec("echo", word="b", key="w"), 1)
        assert len(pool.nodes("v")) == 2
        assert len(pool.nodes("w")) == 1
        await history.until(NodeState.READY, 3)
        first, second = pool.nodes("v")

        await pool.scale(wanted, 1)

        assert (first.state, second.state) == (NodeState.READY, NodeState.DRAINING)
        await history.until(NodeState.GONE)
        assert await ask(first, "still") == "a still"

    run(main)


def test_those_with_the_least_to_do_go() -> None:
    """Of equals the youngest; those that start only when none is to be left."""

    async def main(pool: LocalPool, history: History) -> None:
        wanted = spec("echo", word="a")
        await pool.scale(wanted, 3)
        await history.until(NodeState.READY, 3)
        first, second, third = pool.nodes("v")
        slots = [third.acquire_slot(), third.acquire_slot(), second.acquire_slot()]
        starting = spec("slow")
        await pool.scale(starting, 4)
        (fourth,) = (node for node in pool.nodes("v") if node.state is NodeState.STARTING)

        await pool.scale(wanted, 2)
        assert (first.state, second.state) == (NodeState.DRAINING, NodeState.READY)
        assert (third.state, fourth.state) == (NodeState.READY, NodeState.STARTING)
        await pool.scale(wanted, 1)
        assert (second.state, fourth.state) == (NodeState.DRAINING, NodeState.STARTING)
        await pool.scale(wanted, 0)
        assert (third.state, fourth.state) == (NodeState.DRAINING, NodeState.DRAINING)
        third.release_slot(slots[0])
        third.release_slot(slots[1])
        second.release_slot(slots[2])

    pools.run(main)


def test_a_stop_that_overtakes_a_start_is_kept(run: Run) -> None:
    """A node that is still being started is stopped too."""

    async def main(pool: LocalPool, history: History) -> None:
        wanted = spec("echo", word="a")
        start = asyncio.create_task(pool.scale(wanted, 1))
        await asyncio.sleep(0)
        await pool.scale(wanted, 0)
        await start

        assert all(node.state is NodeState.DRAINING for node in pool.nodes("v"))
        await history.until(NodeState.GONE)

    run(main)


def test_a_stop_at_any_moment_of_a_start_leaves_nothing(run: Run) -> None:
    """Whether its process is asked for, just born, or soon ready."""

    async def main(pool: LocalPool, history: History) -> None:
        for milliseconds in range(0, 30, 2):
            wanted = spec("echo", word="a", key=f"{milliseconds}")
            await pool.scale(wanted, 1)
            (node,) = pool.nodes(wanted.key)
            await asyncio.sleep(milliseconds / 1000)
            await pool.scale(wanted, 0)
            await node.gone.wait()
            assert not node.crashed

    run(main)


def test_a_closed_pool_starts_nothing(run: Run) -> None:
    """Whatever is asked of it while it closes."""

    async def main(pool: LocalPool, history: History) -> None:
        await pool.close()
        await pool.scale(spec("echo", word="a"), 3)
        assert pool.nodes("v") == []

    run(main)


def test_draining_finishes_what_is_under_way(run: Run) -> None:
    """A connection that a node has accepted is answered before it ends."""

    async def main(pool: LocalPool, history: History) -> None:
        await pool.scale(spec("echo", word="late"), 1)
        (node,) = await history.until(NodeState.READY)
        reader, writer = await asyncio.open_unix_connection(node.address)
        writer.write(b"ans")
        await writer.drain()
        await asyncio.to_thread(until, lambda: has_accepted(node), "the node has taken the connection")

        await pool.scale(spec("echo", word="late"), 0)
        writer.write(b"wer\n")

        assert await reader.readline() == b"late answer\n"
        writer.close()
        await writer.wait_closed()
        await history.until(NodeState.GONE)

    run(main)


def has_accepted(node: Node) -> bool:
    """Whether a node has taken a connection: it has a socket besides the listening and the control one."""
    links = Path(f"/proc/{node.report['pid']}/fd").iterdir()
    return sum(str(link.readlink()).startswith("socket:") for link in links) > 2


def test_a_node_is_not_asked_to_end_before_it_is_empty(run: Run) -> None:
    """A request that was given the node, but is not sent yet, is answered: the signal comes after it."""

    async def main(pool: LocalPool, history: History) -> None:
        await pool.scale(spec("echo", word="an"), 1)
        (node,) = await history.until(NodeState.READY)
        slot = node.acquire_slot()
        await pool.scale(spec("echo", word="an"), 0)
        assert node.state is NodeState.DRAINING
        await asyncio.sleep(0.2)

        assert await ask(node, "answer") == "an answer"
        node.release_slot(slot)
        await history.until(NodeState.GONE)
        assert node.reason == "The node ended with exit code 0."

    run(main)


def test_a_node_that_does_not_drain_is_killed(run: Run) -> None:
    """After the time it was given, whether it is deaf or never empty."""

    async def main(pool: LocalPool, history: History) -> None:
        await pool.scale(spec("deaf"), 1)
        await pool.scale(spec("deaf", key="w"), 1)
        (node, other) = await history.until(NodeState.READY, 2)
        other.acquire_slot()
        begin = time.monotonic()
        await pool.scale(spec("deaf"), 0)
        await pool.scale(spec("deaf", key="w"), 0)
        await history.until(NodeState.GONE, 2)

        assert time.monotonic() - begin >= 0.3
        assert node.reason == "The node was killed (SIGKILL): it had not ended after 0.3 s."
        assert (node.reason, node.crashed) == (other.reason, False)

    run(main, drain=0.3)


def test_a_node_that_refuses_says_why(run: Run) -> None:
    """Its own words are the reason; it was never ready, nor would another be."""

    async def main(pool: LocalPool, history: History) -> None:
        await pool.scale(spec("refuse"), 1)
        (node,) = await history.until(NodeState.GONE)

        assert node.reason == "there is no model"
        assert (node.report, node.permanent_failure, node.crashed) == ({}, True, True)
        assert history.states(node) == [NodeState.STARTING, NodeState.GONE]

    run(main)


def test_a_node_that_finds_too_little_on_the_machine_says_so(run: Run) -> None:
    """Which is no word against another one."""

    async def main(pool: LocalPool, history: History) -> None:
        await pool.scale(spec("starve"), 1)
        (node,) = await history.until(NodeState.GONE)

        assert (node.reason, node.starved, node.permanent_failure, node.crashed) == (
            "no thread",
            True,
            False,
            True,
        )

    run(main)


def test_a_node_whose_library_aborts_for_want_of_a_thread_is_not_to_blame(run: Run) -> None:
    async def main(pool: LocalPool, history: History) -> None:
        await pool.scale(spec("abort"), 1)
        (node,) = await history.until(NodeState.GONE)

        assert node.reason == (
            "The node died of signal SIGABRT: the machine has no further thread for it. It wrote: "
            "F0000 env.cc:84] Thread tf_pool creation via pthread_create() failed."
        )
        assert (node.starved, node.permanent_failure, node.crashed) == (True, False, True)

    run(main)


def test_a_node_that_fails_leaves_its_last_words(run: Run) -> None:
    """The last lines of its output, however much and however long the lines before."""

    async def main(pool: LocalPool, history: History) -> None:
        await pool.scale(spec("fail"), 1)
        (node,) = await history.until(NodeState.GONE)

        assert node.reason.startswith("The node ended with exit code 1. Its last output: ")
        assert node.reason.endswith("RuntimeError: no such luck")
        assert len(node.reason) < 2000
        assert (node.permanent_failure, node.crashed) == (False, True)

    run(main)


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (signal.SIGSEGV, r"signal SIGSEGV"),
        (signal.SIGABRT, r"signal SIGABRT"),
        (signal.SIGRTMIN + 1, rf"signal {signal.SIGRTMIN + 1}"),
        (signal.SIGKILL, r"killed from outside \(signal SIGKILL\).*out of memory"),
    ],
)
def test_a_node_that_crashes_is_told_by_the_name_of_the_signal(run: Run, number: int, says: str) -> None:
    """In words for the owner of the version."""

    async def main(pool: LocalPool, history: History) -> None:
        await pool.scale(spec("crash", signal=int(number)), 1)
        (node,) = await history.until(NodeState.GONE)

        assert re.search(says, node.reason)
        assert node.crashed

    run(main)


def test_a_node_that_ran_out_of_memory_is_told_so(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the kernel has counted such a kill meanwhile."""
    kills = iter([5, 6])
    monkeypatch.setattr(machine, "oom_kills", lambda: next(kills))

    async def main(pool: LocalPool, history: History) -> None:
        await pool.scale(spec("crash", signal=int(signal.SIGKILL)), 1)
        (node,) = await history.until(NodeState.GONE)

        assert node.reason == "The node was killed: out of memory."

    run(main)


def test_the_board_of_a_dead_node_tells_what_it_did(run: Run) -> None:
    """It stays as it was at the node's death."""

    async def main(pool: LocalPool, history: History) -> None:
        await pool.scale(spec("note", concurrency=3), 1)
        (node,) = await history.until(NodeState.GONE)

        assert [node.read_mark(slot) for slot in range(3)] == [Mark.COMPUTED, Mark.UNTOUCHED, Mark.COMPUTING]

    run(main)


def test_what_a_node_has_started_ends_with_it(run: Run) -> None:
    """Its children and theirs, at once, though they hold its output; nobody stays behind as a zombie."""

    async def main(pool: LocalPool, history: History) -> None:
        await pool.scale(spec("brood"), 1)
        (node,) = await history.until(NodeState.READY)
        brood = node.report["brood"]
        assert all(exists(pid) for pid in brood)
        await pool.scale(spec("brood"), 0)
        await history.until(NodeState.GONE)
        await asyncio.to_thread(until, lambda: not any(exists(pid) for pid in brood), "all are gone")

    run(main, timing=replace(pools.PATIENT, last_output=2 * HANG_SECONDS))


def exists(pid: int) -> bool:
    """Whether there is such a process, if only a zombie."""
    return Path(f"/proc/{pid}").exists()


def test_a_module_that_cannot_be_imported_is_told(run: Run) -> None:
    """As any other failure at the start."""

    async def main(pool: LocalPool, history: History) -> None:
        await pool.scale(spec("no.such:entry"), 1)
        (node,) = await history.until(NodeState.GONE)

        assert "No module named 'no'" in node.reason

    run(main)


def test_a_process_that_cannot_be_started_is_told(run: Run, way: str) -> None:
    """A node that never was: its end is told like any other. What no program can be given, a fork can."""

    async def main(pool: LocalPool, history: History) -> None:
        environment = {**os.environ, "VARIABLE": "x" * (1 << 20)}
        await pool.scale(spec("echo", environment=environment, word="a"), 1)
        if way == "forked":
            (node,) = await history.until(NodeState.READY)
            assert node.report["variable"] == environment["VARIABLE"]
        else:
            (node,) = await history.until(NodeState.GONE)
            assert node.reason.startswith("Cannot start a process: ")
            assert "Argument list too long" in node.reason
            assert node.crashed

    run(main)


def test_a_node_that_takes_too_long_is_killed(run: Run) -> None:
    """The reason names the setting."""

    async def main(pool: LocalPool, history: History) -> None:
        await pool.scale(spec("slow", start_timeout=0.3), 1)
        (node,) = await history.until(NodeState.GONE)

        assert node.reason == "The node was not ready after 0.3 s (setting start_timeout)."
        assert (node.permanent_failure, node.crashed) == (True, True)

    run(main)


def test_a_node_that_closes_its_descriptors_is_not_waited_for(run: Run) -> None:
    """It could never say that it is ready; its requests waited until their deadlines, each time anew."""

    async def main(pool: LocalPool, history: History) -> None:
        await pool.scale(spec("detach"), 1)
        (node,) = await history.until(NodeState.GONE)

        assert node.reason.startswith("The node has closed its connection to the server")
        assert (node.permanent_failure, node.crashed) == (True, True)

    run(main)


def test_a_report_without_an_end_is_not_kept(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_pipes, "_MOST_REPORT_BYTES", 1 << 20)

    async def main(pool: LocalPool, history: History) -> None:
        await pool.scale(spec("babble"), 1)
        (node,) = await history.until(NodeState.GONE)

        assert "a report of the node has more than 1 MiB" in node.reason
        assert node.crashed

    run(main)


def test_a_node_that_ends_by_itself_is_lent_no_more_at_once(run: Run, tmp_path: Path) -> None:
    """DRAINING as soon as its process has ended, GONE when its last words are read."""

    async def main(pool: LocalPool, history: History) -> None:
        gate = tmp_path / "gate"
        await pool.scale(spec("leave", gate=str(gate)), 1)
        (node,) = await history.until(NodeState.READY)
        gate.touch()
        await history.until(NodeState.GONE)

        assert history.states(node)[-2:] == [NodeState.DRAINING, NodeState.GONE]
        assert "exit code 7" in node.reason
        assert node.crashed
        assert pool.nodes("v") == []

    run(main)


def test_closing_ends_nodes_in_every_state(run: Run) -> None:
    """Starting, ready and draining ones."""

    async def main(pool: LocalPool, history: History) -> None:
        await pool.scale(spec("echo", word="a", key="draining"), 1)
        await pool.scale(spec("echo", word="a", key="ready"), 1)
        await history.until(NodeState.READY, 2)
        await pool.scale(spec("echo", word="a", key="draining"), 0)
        await pool.scale(spec("slow", key="starting"), 1)
        await pool.close()

        assert [pool.nodes(key) for key in ("starting", "ready", "draining")] == [[], [], []]

    run(main)


def test_many_lives_leave_nothing(run: Run, way: str) -> None:
    """No descriptor and no zombie, after many starts and stops."""
    rounds = 10 if way == "forked" else 2

    async def main(pool: LocalPool, history: History) -> None:
        await pool.scale(spec("echo", word="a"), 1)
        await history.until(NodeState.READY)
        await pool.scale(spec("echo", word="a"), 0)
        await history.until(NodeState.GONE)
        if way == "forked":
            await ready_pilots(pool)  # the next spare is at hand
        before = pools.descriptors(), len(children())
        for number in range(rounds):
            wanted = spec("echo", word="a", key=f"{number}")
            await pool.scale(wanted, 5)
            await history.until(NodeState.READY, 5)
            await pool.scale(wanted, 0)
            await history.until(NodeState.GONE, 5 * number + 6)
        if way == "forked":
            await ready_pilots(pool)

        def tidy() -> bool:
            return (pools.descriptors(), len(children())) == before

        await asyncio.to_thread(until, tidy, f"it is as before: {before}")

    run(main)


def test_a_node_is_reached_though_temporary_files_are_cleaned_away(run: Run, way: str) -> None:
    """Also while it starts; and others start after it, wherever their sockets can be bound."""

    def clean() -> None:
        if way != "elsewhere":  # there a node needs the file of its socket
            shutil.rmtree(tempfile.gettempdir())

    async def main(pool: LocalPool, history: History) -> None:
        await pool.scale(spec("echo", word="first"), 1)
        clean()
        (first,) = await history.until(NodeState.READY)
        assert await ask(first, "here") == "first here"
        await pool.scale(spec("echo", word="second", key="other"), 1)
        second = next(node for node in await history.until(NodeState.READY, 2) if node is not first)
        assert await ask(second, "here") == "second here"
        assert await ask(first, "still") == "first still"

    run(main)


def test_so_many_nodes_start_at_a_time() -> None:
    """The others have no process until one of them is ready; one that is stopped meanwhile never has."""

    async def main(pool: LocalPool, history: History) -> None:
        keys = ("a", "b", "c", "d")
        for key in keys:
            await pool.scale(spec("echo", word="hello", key=key), 1)
        assert [pool.nodes(key)[0].state for key in keys] == [NodeState.STARTING] * 4
        await pool.scale(spec("echo", word="hello", key="c"), 0)
        for count in (1, 2, 3):
            await history.until(NodeState.READY, count)
            begun = [node.pid for node in history.nodes.values() if node.state is NodeState.STARTING]
            assert sum(pid is not None for pid in begun) <= 1
        assert {node.key for node in await history.until(NodeState.READY, 3)} == {"a", "b", "d"}
        assert [node.pid for node in history.nodes.values() if node.key == "c"] == [None]

    pools.run(main, starts=1)


def test_a_node_leaves_no_file_where_servers_could_share_it() -> None:
    """Neither while it starts nor later: there is nothing that a killed server could leave behind."""

    async def main(pool: LocalPool, history: History) -> None:
        await pool.scale(spec("echo", word="hello"), 2)
        assert pools.temporary() == []
        await history.until(NodeState.READY, 2)
        assert pools.temporary() == []

    pools.run(main)


def test_sockets_are_bound_wherever_temporary_files_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes start although the folder for temporary files is too far down for a unix socket."""
    deep = tmp_path / ("d" * 100)
    deep.mkdir()

    async def main(pool: LocalPool, history: History) -> None:
        # For no longer than this: at the end of the test it would be set to what it is in here.
        with monkeypatch.context() as patch:
            patch.setattr(tempfile, "tempdir", str(deep))
            await pool.scale(spec("echo", word="hello"), 1)
            (node,) = await history.until(NodeState.READY)
            assert await ask(node, "world") == "hello world"
            assert pools.temporary() == []

    pools.run(main)
