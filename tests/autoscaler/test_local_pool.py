"""The pool of processes, with processes that do nothing but what a test needs."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from autoscaler.pools import Node, NodeSpec, NodeState
from autoscaler.pools.local import LocalPool
from tests.server import until

SECONDS = 20


def spec(entry: str, *, key: str = "v", start_timeout: float = 30, **arguments: Any) -> NodeSpec:
    environment = {**os.environ, "VARIABLE": "as given"}
    return NodeSpec(
        key, f"version {key}", f"tests.autoscaler.nodes:{entry}", arguments, environment, start_timeout, 1
    )


class History:
    """A listener that keeps what it is told, and waits for it."""

    def __init__(self) -> None:
        self.told: list[tuple[str, NodeState]] = []
        self.nodes: dict[str, Node] = {}
        self._news = asyncio.Event()

    def __call__(self, node: Node) -> None:
        self.told.append((node.id, node.state))
        self.nodes[node.id] = node
        self._news.set()

    def states(self, node: Node) -> list[NodeState]:
        return [state for name, state in self.told if name == node.id]

    async def until(self, state: NodeState, count: int = 1) -> list[Node]:
        """The nodes in a state, once there are that many."""
        while len(found := [node for node in self.nodes.values() if node.state is state]) < count:
            self._news.clear()
            await self._news.wait()
        return found


def run(main: Callable[[LocalPool, History], Awaitable[None]], *, drain: float = 10) -> None:
    """Run with a pool; no process and no file of it may be left."""

    async def bounded() -> Path:
        history = History()
        pool = LocalPool(history, drain=drain)
        async with asyncio.timeout(SECONDS):
            async with pool:
                await main(pool, history)
        assert all(node.state is NodeState.GONE for node in history.nodes.values())
        return pool._folder

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as the server does
        folder = runner.run(bounded())
    assert children() == []
    assert not folder.exists()


def children() -> list[int]:
    """The living nodes among the children of this process."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
                command = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if int(parent) == os.getpid() and state != "Z" and b"autoscaler.launch" in command:
                found.append(int(folder.name))
    return found


async def ask(node: Node, word: str) -> str:
    reader, writer = await asyncio.open_unix_connection(node.address)
    writer.write(f"{word}\n".encode())
    line = await reader.readline()
    writer.close()
    await writer.wait_closed()
    return line.decode().strip()


def test_a_node_starts_serves_and_stops() -> None:
    """It gets its arguments and environment, says itself when it is ready, and ends on request."""

    async def main(pool: LocalPool, history: History) -> None:
        await pool.scale(spec("echo", word="hello"), 1)
        (node,) = pool.nodes("v")
        assert node.state is NodeState.STARTING
        await history.until(NodeState.READY)

        assert node.report["given"] == "hello"
        assert node.report["variable"] == "as given"
        assert node.report["pid"] in children()
        assert await ask(node, "world") == "hello world"
        assert pool.nodes("other") == []

        await pool.scale(spec("echo", word="hello"), 0)
        await history.until(NodeState.GONE)

        assert pool.nodes("v") == []
        assert node.reason == "The node ended with exit code 0."
        assert history.states(node) == [
            NodeState.STARTING,
            NodeState.READY,
            NodeState.DRAINING,
            NodeState.GONE,
        ]

    run(main)


def test_scaling_reaches_a_number() -> None:
    """Up and down, counting those that start; the newest go first; versions are apart."""

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


def test_a_stop_that_overtakes_a_start_is_kept() -> None:
    """A node that is still being started is stopped too."""

    async def main(pool: LocalPool, history: History) -> None:
        wanted = spec("echo", word="a")
        start = asyncio.create_task(pool.scale(wanted, 1))
        await asyncio.sleep(0)
        await pool.scale(wanted, 0)
        await start

        assert all(node.state is NodeState.DRAINING for node in pool.nodes("v"))

    run(main)


def test_a_closed_pool_starts_nothing() -> None:
    """Whatever is asked of it while it closes."""

    async def main(pool: LocalPool, history: History) -> None:
        await pool.close()
        await pool.scale(spec("echo", word="a"), 3)
        assert pool.nodes("v") == []

    run(main)


def test_draining_finishes_what_is_under_way() -> None:
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


def test_a_node_that_does_not_drain_is_killed() -> None:
    """After the time it was given."""

    async def main(pool: LocalPool, history: History) -> None:
        await pool.scale(spec("deaf"), 1)
        (node,) = await history.until(NodeState.READY)
        begin = time.monotonic()
        await pool.scale(spec("deaf"), 0)
        await history.until(NodeState.GONE)

        assert time.monotonic() - begin >= 0.3
        assert "SIGKILL" in node.reason

    run(main, drain=0.3)


def test_a_node_that_refuses_says_why() -> None:
    """Its own words are the reason; it was never ready."""

    async def main(pool: LocalPool, history: History) -> None:
        await pool.scale(spec("refuse"), 1)
        (node,) = await history.until(NodeState.GONE)

        assert node.reason == "there is no model"
        assert node.report == {}
        assert history.states(node) == [NodeState.STARTING, NodeState.GONE]

    run(main)


def test_a_node_that_fails_leaves_its_last_words() -> None:
    """The last lines of its output, however much and however long the lines before."""

    async def main(pool: LocalPool, history: History) -> None:
        await pool.scale(spec("fail"), 1)
        (node,) = await history.until(NodeState.GONE)

        assert node.reason.startswith("The node ended with exit code 1. Its last output: ")
        assert node.reason.endswith("RuntimeError: no such luck")
        assert len(node.reason) < 2000

    run(main)


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (signal.SIGSEGV, r"signal SIGSEGV"),
        (signal.SIGABRT, r"signal SIGABRT"),
        (signal.SIGKILL, r"SIGKILL.*out of memory"),
    ],
)
def test_a_node_that_crashes_is_told_by_the_name_of_the_signal(number: signal.Signals, says: str) -> None:
    """In words for the owner of the version."""

    async def main(pool: LocalPool, history: History) -> None:
        await pool.scale(spec("crash", signal=int(number)), 1)
        (node,) = await history.until(NodeState.GONE)

        assert re.search(says, node.reason)

    run(main)


def test_a_module_that_cannot_be_imported_is_told() -> None:
    """As any other failure at the start."""

    async def main(pool: LocalPool, history: History) -> None:
        await pool.scale(NodeSpec("v", "v", "no.such:entry", {}, dict(os.environ), 30, 1), 1)
        (node,) = await history.until(NodeState.GONE)

        assert "No module named 'no'" in node.reason

    run(main)


def test_a_node_that_takes_too_long_is_killed() -> None:
    """The reason names the setting."""

    async def main(pool: LocalPool, history: History) -> None:
        await pool.scale(spec("slow", start_timeout=0.3), 1)
        (node,) = await history.until(NodeState.GONE)

        assert node.reason == "The node was not ready after 0.3 s (setting start_timeout)."

    run(main)


def test_a_node_that_ends_by_itself_is_lent_no_more_at_once(tmp_path: Path) -> None:
    """DRAINING as soon as its process has ended, GONE when its last words are read."""

    async def main(pool: LocalPool, history: History) -> None:
        gate = tmp_path / "gate"
        await pool.scale(spec("leave", gate=str(gate)), 1)
        (node,) = await history.until(NodeState.READY)
        gate.touch()
        await history.until(NodeState.GONE)

        assert history.states(node)[-2:] == [NodeState.DRAINING, NodeState.GONE]
        assert "exit code 7" in node.reason
        assert pool.nodes("v") == []

    run(main)


def test_closing_ends_nodes_in_every_state() -> None:
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


def test_the_sockets_of_a_killed_server_are_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool removes the folders of processes that are no more, and leaves those of the living."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gone = subprocess.Popen(["true"])
    gone.wait()
    dead, alive = (tmp_path / f"pilotlight-sockets-{pid}-x" for pid in (gone.pid, os.getpid()))
    dead.mkdir()
    alive.mkdir()

    async def nothing(pool: LocalPool, history: History) -> None:
        pass

    run(nothing)

    assert not dead.exists()
    assert alive.exists()
