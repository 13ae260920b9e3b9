"""Which nodes the autoscaler starts, and which it stops, while memory is short."""

from __future__ import annotations

import asyncio

from autoscaler.errors import TooLateError
from autoscaler.scaling_loop import MemoryDemand
from tests.autoscaler.fakes import MIB, FakeDeadline, settle
from tests.autoscaler.scaling import World, run


def test_the_longest_idle_version_makes_room() -> None:
    """Its node goes, and as soon as it is gone the other starts, without waiting for a tick."""

    async def main(world: World) -> None:
        for key in ("older", "newer", "v"):
            world.track(key)
        (older,) = await world.awake("older", memory=100 * MIB)
        world.clock.advance(1)
        await world.awake("newer", memory=100 * MIB)
        world.pool.orders.clear()
        world.free = 119 * MIB

        await world.asked()
        assert world.pool.orders == [("older", 0)]
        await world.look(1.0)
        assert world.pool.orders == [("older", 0)]
        world.free = 219 * MIB
        world.pool.end(older)
        await settle()
        assert world.pool.orders == [("older", 0), ("v", 1)]
        reasons = [event.reason for event in world.autoscaler.versions["older"].events]
        assert reasons[-1] == "idle, and stopped to make room for version v"
        assert world.autoscaler.versions["newer"].reason.startswith("1 node: ")  # as it was

    run(main)


def test_a_version_that_was_stopped_for_another_is_woken_like_any() -> None:
    """At once, if there is room again."""

    async def main(world: World) -> None:
        for key in ("old", "v"):
            world.track(key)
        await world.awake("old", memory=100 * MIB)
        busy = await world.asked("old")
        world.free = 20 * MIB
        await world.asked()
        busy.let_go.set()
        await settle()
        await world.look(1.0)
        assert world.pool.orders[-1] == ("old", 0)
        world.free = 1000 * MIB

        await world.asked("old")
        assert sorted(world.pool.orders[-2:]) == [("old", 1), ("v", 1)]

    run(main)


def test_a_shortage_of_memory_is_told_by_name() -> None:
    """Requests wait as long as they can; they start a node as soon as there is room."""

    async def main(world: World) -> None:
        for key in ("busy", "v"):
            world.track(key)
        await world.awake("busy", memory=100 * MIB)
        await world.asked("busy")
        world.free = 50 * MIB
        deadline = FakeDeadline(remaining=5)
        unlucky, lucky = world.ask(deadline=deadline), world.ask()
        await world.ticks(5)
        assert ("v", 1) not in world.pool.orders
        assert not unlucky.task.done()

        deadline.end()
        await settle()
        assert isinstance(unlucky.error, TooLateError)
        assert unlucky.error.reason == (
            "No node of version v can start now: not enough memory: 120 MiB needed, 50 MiB free, and nothing "
            "idle to stop."
        )
        assert unlucky.error.retry_after >= 1.0
        world.free = 120 * MIB
        await world.look(1.0)
        assert world.pool.orders[-1] == ("v", 1)
        world.pool.ready(world.pool.only())
        await settle()
        assert lucky.served

    run(main)


def test_a_burst_while_memory_is_short_looks_at_the_memory_once() -> None:
    """And again at each tick."""

    async def main(world: World) -> None:
        tracked = world.track()
        world.free = 0
        for _ in range(1000):
            world.ask()
        await settle()
        assert world.memory_reads == 1

        for tick in range(10):
            world.free = tick * MIB
            await world.look(1.0)
        assert world.memory_reads == 11
        assert len(tracked.events) == 1  # the numbers alone are no news
        assert "9 MiB free" in tracked.reason

    run(main)


def test_a_lower_bound_waits_for_memory() -> None:
    """It is tried at each tick, though nobody asks."""

    async def main(world: World) -> None:
        world.track(min_nodes=1)
        world.free = 0
        await world.ticks(3)
        assert world.pool.orders == []

        world.free = 120 * MIB
        await world.ticks(1)
        assert world.pool.orders == [("v", 1)]

    run(main)


def test_memory_is_not_given_twice() -> None:
    """Neither to two that wake in the same moment, nor while a node still loads."""

    async def main(world: World) -> None:
        for key in "abc":
            world.track(key)
        world.free = 219 * MIB
        for key in "ab":
            world.ask(key)
        await settle()
        assert world.pool.orders == [("a", 1)]
        await world.asked("c")
        await world.look(1.0)
        assert world.pool.orders == [("a", 1)]

        world.pool.ready(world.pool.only("a"), memory=100 * MIB)
        world.free = 120 * MIB
        await world.look(1.0)
        assert world.pool.orders == [("a", 1), ("b", 1)]

    run(main)


def test_two_that_wake_in_the_same_moment_stop_no_more_than_they_need() -> None:
    """What one has stopped counts for the other, though it has not gone yet."""

    async def main(world: World) -> None:
        for key in ("older", "newer", "a", "b"):
            world.track(key)
        (older,) = await world.awake("older", memory=300 * MIB)
        world.clock.advance(1)
        await world.awake("newer", memory=300 * MIB)
        world.pool.orders.clear()
        world.free = 0
        world.ask("a")
        world.ask("b")
        await settle()
        await world.look(1.0)
        assert world.pool.orders == [("older", 0)]

        world.free = 300 * MIB
        world.pool.end(older)
        await settle()
        assert sorted(world.pool.orders) == [("a", 1), ("b", 1), ("older", 0)]

    run(main)


def test_what_is_being_stopped_is_not_stopped_again() -> None:
    """One order at a time, also for a version that must make room while it shrinks."""

    async def main(world: World) -> None:
        world.track("old", exact_nodes=2)
        world.track()
        await world.look()
        for node in world.pool.nodes("old"):
            world.pool.ready(node, memory=100 * MIB)
        world.pool.open.clear()
        world.track("old", max_nodes=1)
        await world.look(90.0)
        world.free = 0
        await world.asked()
        assert world.pool.orders == [("old", 2), ("old", 1)]

        world.pool.open.set()
        await settle()
        await world.look(1.0)
        assert [order for order in world.pool.orders if order[0] == "old"][:2] == [("old", 2), ("old", 1)]

    run(main)


def test_the_memory_of_all_nodes_is_bounded_if_so_configured() -> None:
    """However much the machine has."""

    async def main(world: World) -> None:
        for key in "abc":
            world.track(key)
        (node,) = await world.awake("a", memory=100 * MIB)
        await world.asked("a")
        await world.asked("b")
        await world.asked("c")
        assert world.pool.orders == [("a", 1), ("b", 1)]

        world.pool.crash(node)
        await settle()
        assert world.pool.orders[-1] in (("a", 1), ("c", 1))
        assert len(world.pool.orders) == 3

    run(main, memory_bytes=239 * MIB)


def test_a_deleted_version_leaves_its_memory_to_those_who_wait() -> None:
    """At once, when its node is gone."""

    async def main(world: World) -> None:
        for key in ("old", "v"):
            world.track(key)
        (node,) = await world.awake("old", memory=100 * MIB)
        world.free = 0
        inside = await world.asked("old")
        await world.asked()
        forgetting = asyncio.create_task(world.autoscaler.stop_version("old"))
        await settle()
        inside.let_go.set()
        world.free = 120 * MIB
        world.pool.end(node)
        await settle()

        assert world.pool.orders[-1] == ("v", 1)
        assert forgetting.done()

    run(main)


def test_what_is_needed_is_told_beside_what_is_there() -> None:
    """Idle nodes need nothing, those without room as much as they would start with."""

    async def main(world: World) -> None:
        for key in ("busy", "idle", "v"):
            world.track(key)
        await world.awake("idle", memory=30 * MIB)
        await world.awake("busy", memory=100 * MIB)
        world.free = 50 * MIB
        assert world.autoscaler.sum_memory_demand() == MemoryDemand(0, 0, 180 * MIB)

        busy = await world.asked("busy")
        waiting = world.ask(deadline=FakeDeadline(remaining=5))
        await world.ticks(2)
        assert world.autoscaler.sum_memory_demand() == MemoryDemand(100 * MIB, 120 * MIB, 180 * MIB)

        busy.let_go.set()
        world.free = 1000 * MIB
        await settle()
        await world.look(1.0)
        assert world.autoscaler.sum_memory_demand().missing == 0
        assert not waiting.task.done()

    run(main)
