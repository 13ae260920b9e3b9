"""A pool with tiny nodes, and what tests look at: what the pool tells, and which processes there are."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import uvloop

from autoscaler.pools import Node, NodeSpec, NodeState, PilotSpec, PilotState, PilotStatus
from autoscaler.pools.local_pool import LocalPool
from autoscaler.pools.timing import PoolTiming
from autoscaler.supervision import Supervisor
from tests.bounds import HANG_SECONDS

ENVIRONMENT = {**os.environ, "VARIABLE": "as given"}


def pilot(*preload: str, key: str = "tiny", **environment: str) -> PilotSpec:
    return PilotSpec(key, preload or ("tests.autoscaler.nodes",), {**os.environ, **environment})


TINY = pilot()


def spec(
    entry: str,
    *,
    key: str = "v",
    start_timeout: float = 30,
    concurrency: int = 4,
    pilot: PilotSpec | None = TINY,
    environment: Mapping[str, str] = ENVIRONMENT,
    counter_bytes: int = 0,
    **arguments: Any,
) -> NodeSpec:
    entry = entry if ":" in entry else f"tests.autoscaler.nodes:{entry}"
    return NodeSpec(
        key,
        f"version {key}",
        entry,
        arguments,
        environment,
        start_timeout,
        concurrency,
        pilot,
        counter_bytes=counter_bytes,
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


Main = Callable[[LocalPool, History], Awaitable[None]]


# A busy machine may take long for a fork, and these tests run beside others.
PATIENT = PoolTiming(fork=HANG_SECONDS)


def run(
    main: Main,
    *,
    drain: float = 10,
    pilots: str | float = "auto",
    starts: int = 100,
    timing: PoolTiming = PATIENT,
) -> None:
    """Run with a pool; no process, no descriptor and no file of it may be left."""

    async def bounded() -> None:
        history = History()
        supervisor = Supervisor()
        pool = LocalPool(
            history, drain=drain, supervisor=supervisor, starts=starts, pilots=pilots, timing=timing
        )
        async with asyncio.timeout(HANG_SECONDS):
            async with supervisor, pool:
                await main(pool, history)
        assert set(supervisor.errors.values()) <= {0}, supervisor.errors
        assert all(node.state is NodeState.GONE for node in history.nodes.values())

    _first_loop()
    before, open_before = children(), descriptors()
    with temporary_files() as folder:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as the server does
            runner.run(bounded())
        assert {pid: command(pid) for pid in children() - before} == {}
        assert descriptors() == open_before
        assert not folder.exists() or list(folder.iterdir()) == []


@contextlib.contextmanager
def temporary_files() -> Iterator[Path]:
    """Where this process's temporary files go for the length of the block; a test may remove the folder."""
    usual = tempfile.tempdir
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        tempfile.tempdir = folder
        try:
            yield Path(folder)
        finally:
            tempfile.tempdir = usual


def temporary() -> list[str]:
    """The names of all temporary files."""
    return [file.name for file in Path(tempfile.gettempdir()).iterdir()]


@cache
def _first_loop() -> None:
    """uvloop opens pipes with its first loop and keeps them."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.sleep(0))


def children() -> set[int]:
    """The children of this process, zombies too."""
    found: set[int] = set()
    for task in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has ended
            found.update(map(int, task.read_text().split()))
    return found


def command(pid: int) -> str:
    """What `ps` says of a process."""
    return " ".join(Path(f"/proc/{pid}/stat").read_text().split()[1:8])


def descriptors() -> Counter[str]:
    """What descriptors this process has open, by what they are of: how many."""
    found: Counter[str] = Counter()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the folder itself
            found[re.sub(r"\d", "", str(link.readlink()))] += 1
    return found


async def ready_pilots(pool: LocalPool, count: int = 1) -> list[PilotStatus]:
    """The pilots, once that many are lit and have a spare at hand that is our child."""
    while True:
        found = [
            one for one in pool.list_pilots() if one.state is PilotState.READY and one.spare in children()
        ]
        if len(found) >= count:
            return found
        await asyncio.sleep(0.01)


async def ask(node: Node, word: str) -> str:
    reader, writer = await asyncio.open_unix_connection(node.address)
    writer.write(f"{word}\n".encode())
    line = await reader.readline()
    writer.close()
    await writer.wait_closed()
    return line.decode().strip()
