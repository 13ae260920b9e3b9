"""The autoscaler with a pool and a clock that do what a test says: what it sees, decides and has done."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from autoscaler.errors import RetiredError, StartFailedError, TooLateError
from autoscaler.pools import NodeState
from tests.autoscaler.fakes import FakeDeadline, settle, spec
from tests.autoscaler.scaling import World, run

# ---- to one, and back to none


def test_the_first_request_starts_a_node_at_once() -> None:
    """Without waiting for a tick; a thousand at the same time start one node."""

    async def main(world: World) -> None:
        world.track()
        askers = [world.ask(concurrency=1000) for _ in range(1000)]
        await settle()
        assert world.pool.orders == [("v", 1)]

        world.pool.ready(world.pool.only())
        await settle()

        assert sum(asker.served for asker in askers) == 4
        assert world.pool.orders == [("v", 1)]

    run(main)


def test_a_version_that_is_idle_for_long_gets_no_nodes() -> None:
    """Once it is longer than the idle window since its last request ended, and not before."""

    async def main(world: World) -> None:
        world.track()
        asker = await world.asked()
        world.pool.ready(world.pool.only())
        await world.look(1000.0)
        assert asker.served
        asker.let_go.set()
        await settle()

        await world.look(300.0)
        assert world.pool.orders == [("v", 1)]
        await world.look(0.5)
        assert world.pool.orders == [("v", 1), ("v", 0)]
        assert [node.state for node in world.pool.living] == [NodeState.DRAINING]

    run(main)


def test_a_version_that_sleeps_is_not_looked_at() -> None:
    """Once its nodes are gone, it costs nothing until somebody asks for it."""

    async def main(world: World) -> None:
        for number in range(5):
            world.track(f"sleeps{number}")
        world.track()
        (node,) = await world.awake()
        await world.look(301.0)
        world.pool.end(node)
        await settle()
        await world.look(1.0)
        looks = world.pool.looks
        await world.ticks(10)
        assert world.pool.looks == looks

        await world.asked()
        assert world.pool.orders == [("v", 1), ("v", 0), ("v", 1)]

    run(main)


def test_a_request_that_cannot_wait_so_long_starts_a_node_all_the_same() -> None:
    """It is told when to come again; then there is a node."""

    async def main(world: World) -> None:
        world.track(start_seconds=8.0)
        hasty = world.ask(deadline=FakeDeadline(remaining=2.0))
        await settle()
        assert isinstance(hasty.error, TooLateError)
        assert hasty.error.retry_after == 8.0
        assert world.pool.orders == [("v", 1)]

        await world.ticks(3)
        again = world.ask(deadline=FakeDeadline(remaining=2.0))
        await settle()
        assert isinstance(again.error, TooLateError)
        assert again.error.retry_after == pytest.approx(5.0)
        await world.ticks(4)
        world.pool.ready(world.pool.only())
        await world.ticks(1)
        third = world.ask(deadline=FakeDeadline(remaining=2.0))
        await settle()
        assert third.served
        assert world.pool.orders == [("v", 1)]

    run(main)


def test_a_request_that_comes_while_the_nodes_drain_starts_one_at_once() -> None:
    """Nodes on their way out serve nobody."""

    async def main(world: World) -> None:
        world.track()
        (node,) = await world.awake()
        await world.look(301.0)
        assert node.state is NodeState.DRAINING

        asker = await world.asked()
        assert world.pool.orders == [("v", 1), ("v", 0), ("v", 1)]
        world.pool.ready(world.pool.only())
        await settle()
        assert asker.served

    run(main)


def test_a_request_that_comes_while_an_order_is_under_way_is_seen_to_afterwards() -> None:
    """At once, not at the next tick; and there are never two orders at a time."""

    async def main(world: World) -> None:
        world.track()
        (node,) = await world.awake()
        world.pool.open.clear()
        await world.look(301.0)
        world.pool.crash(node)
        asker = await world.asked()
        await world.look()
        assert world.pool.orders == [("v", 1), ("v", 0)]

        world.pool.open.set()
        await settle()
        assert world.pool.orders == [("v", 1), ("v", 0), ("v", 1)]
        world.pool.ready(world.pool.only())
        await settle()
        assert asker.served

    run(main)


def test_a_request_that_went_away_while_an_order_was_under_way_starts_a_node_too() -> None:
    """It was told when to come again."""

    async def main(world: World) -> None:
        tracked = world.track()
        (node,) = await world.awake()
        tracked.starts[:] = [(True, 8.0)]
        world.pool.open.clear()
        await world.look(301.0)
        world.pool.end(node)
        hasty = world.ask(deadline=FakeDeadline(remaining=2.0))
        await settle()
        assert isinstance(hasty.error, TooLateError)

        world.pool.open.set()
        await settle()
        assert world.pool.orders == [("v", 1), ("v", 0), ("v", 1)]

    run(main)


# ---- between one and many


def test_a_version_grows_with_its_load_and_no_further_than_it_may() -> None:
    """Within seconds when the load is many times what its nodes are for."""

    async def main(world: World) -> None:
        world.track(max_nodes=3)
        for _ in range(8):
            await world.asked()
        world.pool.ready(world.pool.only())
        await world.ticks(10)

        assert world.pool.orders[0] == ("v", 1)
        assert world.pool.orders[-1] == ("v", 3)
        assert len(world.pool.nodes("v")) == 3

    run(main)


def test_a_version_shrinks_after_the_delay() -> None:
    """To what its load asks for; the node that goes is the least loaded one."""

    async def main(world: World) -> None:
        tracked = world.track(max_nodes=3)
        askers = [await world.asked() for _ in range(3)]
        for _ in range(70):
            for node in world.pool.nodes("v"):
                if node.state is NodeState.STARTING:
                    world.pool.ready(node)
            await world.look(1.0)
        assert len(world.pool.nodes("v")) == 3
        for asker in askers[1:]:
            asker.let_go.set()

        await world.ticks(59)
        assert world.pool.orders[-1] == ("v", 3)
        await world.ticks(122)
        assert world.pool.orders[-1] == ("v", 1)
        staying = askers[0].node
        assert [node for node in world.pool.nodes("v") if node.state is NodeState.READY] == [staying]
        assert tracked.desired == 1

    run(main)


def test_lower_bounds_hold_from_the_start() -> None:
    """Nobody has to ask; and they hold for ever."""

    async def main(world: World) -> None:
        world.track("min", min_nodes=2)
        world.track("exact", exact_nodes=3)
        world.track("none")
        await world.look()
        assert sorted(world.pool.orders) == [("exact", 3), ("min", 2)]

        for node in list(world.pool.living):
            world.pool.ready(node)
        await world.look(10_000.0)
        assert len(world.pool.orders) == 2

    run(main)


def test_changed_rules_hold_from_the_next_tick() -> None:
    """Up and down, for a version that sleeps too."""

    async def main(world: World) -> None:
        world.track()
        await world.look()
        assert world.pool.orders == []

        for rules, nodes in (({"min_nodes": 2}, 2), ({"exact_nodes": 3}, 3), ({"exact_nodes": 1}, 1)):
            world.track(**rules)  # type: ignore[arg-type]
            await world.look(1.0)
            for node in world.pool.nodes("v"):
                if node.state is NodeState.STARTING:
                    world.pool.ready(node)
            assert world.pool.orders[-1] == ("v", nodes)
        world.track()
        await world.look(299.0)
        assert world.pool.orders[-1] == ("v", 1)
        await world.look(10.0)
        assert world.pool.orders[-1] == ("v", 0)

    run(main)


def test_an_autoscaler_that_starts_anew_leaves_nodes_their_idle_window() -> None:
    """It does not know how long they have been idle."""

    async def main(world: World) -> None:
        world.track()
        await world.awake()
        await world.ticks(200)
        world.autoscaler = world.start()
        world.track()
        await world.look(250.0)
        assert world.pool.orders == [("v", 1)]

        await world.look(51.0)
        assert world.pool.orders == [("v", 1), ("v", 0)]

    run(main)


# ---- versions that go


def test_forgetting_a_version_waits_for_its_nodes() -> None:
    """Those inside finish, those who wait are told, and nobody can wake it any more."""

    async def main(world: World) -> None:
        world.track(concurrency=1)
        inside, waiting = world.ask(concurrency=1), world.ask(concurrency=1)
        await settle()
        node = world.pool.ready(world.pool.only())
        await settle()
        forgetting = asyncio.create_task(world.autoscaler.stop_version("v"))
        await settle()
        assert isinstance(waiting.error, RetiredError)
        assert inside.served
        assert not forgetting.done()
        assert node.state is NodeState.DRAINING

        again = asyncio.create_task(world.autoscaler.stop_version("v"))
        late = await world.asked()
        assert isinstance(late.error, StartFailedError)
        inside.let_go.set()
        await settle()
        assert not again.done()
        world.pool.end(node)
        await settle()
        assert forgetting.done()
        assert again.done()
        assert "v" not in world.autoscaler.versions
        await world.look(1.0)
        assert world.pool.orders == [("v", 1), ("v", 0)]
        await world.autoscaler.stop_version("v")  # once more is no error

    run(main)


def test_forgetting_a_version_that_is_being_started_waits_for_that_too() -> None:
    """The order to stop must not come before the order to start."""

    async def main(world: World) -> None:
        world.track()
        world.pool.open.clear()
        asker = await world.asked()
        forgetting = asyncio.create_task(world.autoscaler.stop_version("v"))
        await settle()
        assert isinstance(asker.error, RetiredError)
        assert world.pool.orders == [("v", 1)]

        world.pool.open.set()
        await settle()
        assert world.pool.orders == [("v", 1), ("v", 0)]
        (node,) = world.pool.nodes("v")
        assert node.state is NodeState.DRAINING
        world.pool.end(node)
        await settle()
        assert forgetting.done()

    run(main)


def test_what_becomes_of_a_forgotten_version_is_nobodys_business(caplog: pytest.LogCaptureFixture) -> None:
    """Neither an order that fails nor a node that dies is told."""

    async def main(world: World) -> None:
        world.track()
        world.pool.open.clear()
        await world.asked()
        forgetting = asyncio.create_task(world.autoscaler.stop_version("v"))
        await settle()
        world.pool.ready(world.pool.start(spec()))
        world.pool.crash(world.pool.only())
        world.pool.open.set()
        await settle()
        for node in list(world.pool.living):
            world.pool.end(node)
        await settle()

        assert forgetting.done()
        assert world.troubles == []

    with caplog.at_level(logging.CRITICAL):
        run(main)


# ---- the story


def test_each_decision_is_told_with_its_reason() -> None:
    """Also what was refused, and how often."""

    async def main(world: World) -> None:
        tracked = world.track(start_seconds=5.0)
        assert tracked.reason == "asleep: no request since the server started"
        for _ in range(3):
            world.ask(deadline=FakeDeadline(remaining=1.0))
        await settle()
        world.clock.advance(4.0)
        world.pool.ready(world.pool.only())
        await world.ticks(301)

        assert [(event.nodes, event.reason) for event in tracked.events] == [
            (1, "1 node: a request waits"),
            (0, "asleep: no request for 301 s (idle window 300 s)"),
        ]
        assert [(refusal.count, refusal.reason) for refusal in tracked.refusals] == [
            (3, "TooLateError: A node of version v is starting; it takes about 5.0 s.")
        ]
        assert tracked.wakeups == {"ready": 1}
        assert tracked.start_seconds(forked=True) == 4.5

    run(main)


def test_node_seconds_are_counted_from_start_to_end() -> None:
    """And of them the idle ones: those in which a ready node had no request."""

    async def main(world: World) -> None:
        tracked = world.track()
        asker = await world.asked()
        await world.ticks(2)
        node = world.pool.ready(world.pool.only())
        await settle()
        await world.ticks(3)
        asker.let_go.set()
        await settle()
        await world.ticks(4)
        assert tracked.node_seconds(world.pool.nodes("v"), world.clock()) == 9.0
        assert tracked.idle_node_seconds == 4.0

        world.pool.drain(node)
        await world.ticks(2)
        world.pool.end(node)
        await world.ticks(5)
        assert tracked.node_seconds(world.pool.nodes("v"), world.clock()) == 11.0
        assert tracked.idle_node_seconds == 4.0

    run(main)


# ---- the task


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await settle()


def test_it_looks_at_every_tick() -> None:
    """It sleeps when all versions do, and begins again by itself."""

    async def main(world: World) -> None:
        loop = world.autoscaler.start()
        await settle()
        assert world.pool.looks == 0

        world.track(min_nodes=1)
        await until(lambda: world.pool.orders == [("v", 1)])
        world.track()
        world.pool.ready(world.pool.only())
        world.clock.advance(301)
        await until(lambda: world.pool.orders == [("v", 1), ("v", 0)])
        world.pool.end(world.pool.living[0])
        await asyncio.sleep(0.01)
        looks, reads = world.pool.looks, world.clock.reads
        await asyncio.sleep(0.01)
        assert (world.pool.looks, world.clock.reads) == (looks, reads)
        await loop.stop()

    run(main, tick=0.001)


def test_nothing_that_goes_wrong_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged; a request that wakes meanwhile waits, and the next tick goes on."""

    async def main(world: World) -> None:
        world.track()
        world.free_failure = RuntimeError("no such file: meminfo")
        asker = await world.asked()
        assert not asker.task.done()
        loop = world.autoscaler.start()
        await until(lambda: world.memory_reads >= 3)
        assert world.pool.orders == []

        world.free_failure = None
        await until(lambda: world.pool.orders == [("v", 1)])
        world.pool.ready(world.pool.only())
        await settle()
        assert asker.served
        assert world.supervisor.errors["autoscaler"] >= 3
        await loop.stop()

    run(main, tick=0.001)
    assert "no such file: meminfo" in caplog.text
