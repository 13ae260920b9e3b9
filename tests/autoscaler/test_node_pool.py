"""What every kind of pool does alike: the same tests for each. A new kind gets its line in POOLS."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from autoscaler.node_memory import Mark
from autoscaler.pools import Node, NodePool, NodeSpec, NodeState
from autoscaler.pools.local_pool import LocalPool
from autoscaler.supervision import Supervisor
from tests.autoscaler.in_process_pool import InProcessPool, Inside, Program
from tests.autoscaler.pool import History, ask, spec
from tests.bounds import HANG_SECONDS

Main = Callable[[NodePool, History], Awaitable[None]]
COUNTERS = 16


# ---- the programs of tests.autoscaler.nodes, as tasks


async def echo(inside: Inside) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = (await reader.readline()).decode()
        writer.write(f"{inside.arguments['word']} {line}".encode())
        writer.close()

    server = await asyncio.start_unix_server(answer, sock=inside.listener)
    inside.report({"ready": {"given": inside.arguments["word"]}})
    await inside.stopping.wait()
    server.close()


async def slow(inside: Inside) -> None:
    await inside.stopping.wait()


async def deaf(inside: Inside) -> None:
    inside.report({"ready": {}})
    await asyncio.Event().wait()


async def refuse(inside: Inside) -> None:
    inside.report({"failed": "there is no model"})


async def starve(inside: Inside) -> None:
    inside.report({"short": "no thread"})


async def fail(inside: Inside) -> None:
    raise RuntimeError("no such luck")


async def note(inside: Inside) -> None:
    inside.report({"ready": {}})
    inside.shared.marks[0], inside.shared.marks[2] = Mark.COMPUTED, Mark.COMPUTING
    raise RuntimeError("dead")


async def count(inside: Inside) -> None:
    inside.shared.counters.cast("Q")[1] = 1 << 40
    await echo(inside)


PROGRAMS: dict[str, Program] = {
    f"tests.autoscaler.nodes:{program.__name__}": program
    for program in (echo, slow, deaf, refuse, starve, fail, note, count)
}


# ---- the pools


def start_cold(history: History, supervisor: Supervisor, drain: float) -> NodePool:
    return LocalPool(history, drain=drain, supervisor=supervisor, starts=10, pilots="off")


def fork(history: History, supervisor: Supervisor, drain: float) -> NodePool:
    return LocalPool(history, drain=drain, supervisor=supervisor, starts=10)


def in_process(history: History, supervisor: Supervisor, drain: float) -> NodePool:
    return InProcessPool(history, PROGRAMS, drain=drain)


POOLS = (start_cold, fork, in_process)


@pytest.fixture(params=POOLS, ids=lambda make: make.__name__)
def run(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Runs a test with a pool of each kind; none of its nodes is left."""

    def run(main: Main, *, drain: float = 10) -> None:
        async def bounded() -> None:
            history, supervisor = History(), Supervisor()
            pool: NodePool = request.param(history, supervisor, drain)
            async with asyncio.timeout(HANG_SECONDS), supervisor, pool:
                await main(pool, history)
            assert set(supervisor.errors.values()) <= {0}, supervisor.errors
            assert all(node.state is NodeState.GONE for node in history.nodes.values())

        asyncio.run(bounded())

    return run


def echoing(key: str = "v") -> NodeSpec:
    return spec("echo", word="hello", key=key)


async def start(pool: NodePool, history: History, wanted: NodeSpec, number: int = 1) -> list[Node]:
    await pool.scale(wanted, number)
    await history.until(NodeState.READY, number)
    return list(pool.nodes(wanted.key))


# ---- from start to end


def test_a_node_starts_serves_and_stops(run: Callable[..., None]) -> None:
    async def main(pool: NodePool, history: History) -> None:
        await pool.scale(echoing(), 1)
        (node,) = pool.nodes("v")
        assert (node.state, node.key) == (NodeState.STARTING, "v")
        await history.until(NodeState.READY)
        assert node.report["given"] == "hello"
        assert node.asked_at <= (node.ready_at or 0)
        assert await ask(node, "world") == "hello world"
        assert pool.nodes("other") == []

        await pool.scale(echoing(), 0)
        await node.gone.wait()

        assert (node.crashed, node.permanent_failure, node.hung) == (False, False, False)
        assert node.reason
        assert pool.nodes("v") == []
        order = [NodeState.STARTING, NodeState.READY, NodeState.DRAINING, NodeState.GONE]
        assert history.states(node) == order

    run(main)


def test_the_end_of_the_block_ends_all(run: Callable[..., None]) -> None:
    """Ready ones and starting ones; `run` looks whether any is left."""

    async def main(pool: NodePool, history: History) -> None:
        await start(pool, history, echoing(), 2)
        await pool.scale(spec("slow", key="w"), 1)

    run(main)


def test_scaling_reaches_a_number(run: Callable[..., None]) -> None:
    """Counting those that start; the oldest come first, and versions are apart."""

    async def main(pool: NodePool, history: History) -> None:
        await asyncio.gather(pool.scale(echoing(), 2), pool.scale(echoing(), 2))
        await pool.scale(echoing("w"), 1)
        await history.until(NodeState.READY, 3)
        first, second = pool.nodes("v")
        assert first.asked_at <= second.asked_at
        assert len(pool.nodes("w")) == 1

    run(main)


def test_the_least_loaded_are_drained_first(run: Callable[..., None]) -> None:
    """Starting ones only when none is to be left."""

    async def main(pool: NodePool, history: History) -> None:
        first, second = await start(pool, history, echoing(), 2)
        slot = second.acquire_slot()
        await pool.scale(spec("slow"), 3)
        (third,) = (node for node in pool.nodes("v") if node.state is NodeState.STARTING)

        await pool.scale(echoing(), 1)
        assert (first.state, second.state) == (NodeState.DRAINING, NodeState.READY)
        assert third.state is NodeState.STARTING
        await pool.scale(echoing(), 0)
        assert (second.state, third.state) == (NodeState.DRAINING, NodeState.DRAINING)
        second.release_slot(slot)

    run(main)


def test_a_draining_node_ends_once_it_is_empty(run: Callable[..., None]) -> None:
    async def main(pool: NodePool, history: History) -> None:
        (node,) = await start(pool, history, echoing())
        slot = node.acquire_slot()
        await pool.scale(echoing(), 0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                await node.gone.wait()
        assert node.state is NodeState.DRAINING
        assert await ask(node, "still") == "hello still"

        node.release_slot(slot)
        await node.gone.wait()
        assert not node.crashed

    run(main)


def test_a_node_that_does_not_drain_is_ended(run: Callable[..., None]) -> None:
    async def main(pool: NodePool, history: History) -> None:
        (node,) = await start(pool, history, spec("deaf"))
        await pool.scale(spec("deaf"), 0)
        await node.gone.wait()
        assert "had not ended after 0.3 s" in node.reason
        assert not node.crashed

    run(main, drain=0.3)


# ---- failures


def test_a_node_that_refuses_says_why(run: Callable[..., None]) -> None:
    """Another would refuse too."""

    async def main(pool: NodePool, history: History) -> None:
        await pool.scale(spec("refuse"), 1)
        (node,) = await history.until(NodeState.GONE)
        assert node.reason == "there is no model"
        assert (node.crashed, node.permanent_failure, node.starved) == (True, True, False)
        assert history.states(node) == [NodeState.STARTING, NodeState.GONE]

    run(main)


def test_a_shortage_is_no_fault_of_the_version(run: Callable[..., None]) -> None:
    async def main(pool: NodePool, history: History) -> None:
        await pool.scale(spec("starve"), 1)
        (node,) = await history.until(NodeState.GONE)
        assert node.reason == "no thread"
        assert (node.crashed, node.permanent_failure, node.starved) == (True, False, True)

    run(main)


def test_a_crash_at_the_start_may_be_chance(run: Callable[..., None]) -> None:
    async def main(pool: NodePool, history: History) -> None:
        await pool.scale(spec("fail"), 1)
        (node,) = await history.until(NodeState.GONE)
        assert "no such luck" in node.reason
        assert (node.crashed, node.permanent_failure, node.starved) == (True, False, False)

    run(main)


def test_a_start_has_its_time(run: Callable[..., None]) -> None:
    async def main(pool: NodePool, history: History) -> None:
        await pool.scale(spec("slow", start_timeout=0.3), 1)
        (node,) = await history.until(NodeState.GONE)
        assert node.reason == "The node was not ready after 0.3 s (setting start_timeout)."
        assert (node.crashed, node.permanent_failure) == (True, True)

    run(main)


def test_a_hung_node_is_killed_at_once(run: Callable[..., None]) -> None:
    """With a request inside, whose mark can still be read."""

    async def main(pool: NodePool, history: History) -> None:
        (node,) = await start(pool, history, spec("deaf"))
        slot = node.acquire_slot()
        pool.kill_hung(node, "It hangs.")
        assert node.state is NodeState.DRAINING
        await node.gone.wait()
        assert (node.hung, node.crashed, node.reason) == (True, True, "It hangs.")
        assert node.read_mark(slot) is Mark.UNTOUCHED
        pool.kill_hung(node, "It is gone already.")
        assert node.reason == "It hangs."

    run(main)


def test_marks_outlive_a_node(run: Callable[..., None]) -> None:
    """They say which requests it was computing when it died."""

    async def main(pool: NodePool, history: History) -> None:
        await pool.scale(spec("note"), 1)
        (node,) = await history.until(NodeState.GONE)
        marks = [node.read_mark(slot) for slot in range(3)]
        assert marks == [Mark.COMPUTED, Mark.UNTOUCHED, Mark.COMPUTING]
        assert node.crashed

    run(main)


def test_counters_are_read_while_it_lives_and_after(run: Callable[..., None]) -> None:
    async def main(pool: NodePool, history: History) -> None:
        wanted = spec("count", word="a", counter_bytes=COUNTERS)
        (node,) = await start(pool, history, wanted)
        living = node.read_counters()
        assert memoryview(living).cast("Q").tolist() == [0, 1 << 40]

        await pool.scale(wanted, 0)
        await node.gone.wait()
        assert node.read_counters() == living

    run(main)


# ---- pilots, capacity and usage


def test_capacity_and_usage(run: Callable[..., None]) -> None:
    """Whatever cannot be known is None or 0; nothing of it raises, at any time of a node's life."""

    async def main(pool: NodePool, history: History) -> None:
        assert pool.count_cores() >= 1
        assert pool.available_memory() >= 0
        (node,) = await start(pool, history, echoing())
        used = await asyncio.to_thread(pool.measure_memory, node.pids)
        assert used is None or 0 < used.private <= used.proportional
        assert (pool.cpu_seconds(node) or 0.0) >= 0
        assert pool.run_delay_seconds(node) >= 0

        await pool.scale(echoing(), 0)
        await node.gone.wait()
        assert await asyncio.to_thread(pool.measure_memory, node.pids) is None
        assert pool.cpu_seconds(node) is None
        assert pool.run_delay_seconds(node) >= 0

    run(main)


def test_pilots_are_there_or_not_needed(run: Callable[..., None]) -> None:
    """Whoever waits for them goes on; a pool can fork once one is ready."""

    async def main(pool: NodePool, history: History) -> None:
        wanted = echoing()
        pool.set_wanted_pilots(wanted.pilots)
        await pool.wait_for_pilots(HANG_SECONDS)
        assert {pilot.key for pilot in pool.list_pilots()} <= {pilot.key for pilot in wanted.pilots}
        can_fork = pool.can_fork(wanted)
        (node,) = await start(pool, history, wanted)
        assert node.forked is can_fork
        pool.set_wanted_pilots(())

    run(main)
