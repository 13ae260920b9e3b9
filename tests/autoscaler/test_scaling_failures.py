"""What the autoscaler does about nodes that do not start, or die."""

from __future__ import annotations

import errno
import logging

import pytest

from autoscaler.errors import StartFailedError, TooLateError
from tests.autoscaler.fakes import FakeDeadline, settle
from tests.autoscaler.scaling import World, run


def test_a_node_that_crashes_is_replaced_at_once() -> None:
    """Though nobody waits; a node that had served is no failed start."""

    async def main(world: World) -> None:
        tracked = world.track()
        (node,) = await world.awake()
        world.pool.crash(node, "The node died of signal SIGSEGV.")
        await settle()

        assert world.pool.orders == [("v", 1), ("v", 1)]
        assert tracked.failures.count == 0
        assert world.troubles == [("v", "")]
        assert f"node {node.id} is lost: The node died of signal SIGSEGV." in [
            event.reason for event in tracked.events
        ]

    run(main)


def test_a_node_that_was_asked_to_go_is_not_replaced() -> None:
    """Nor is its end a failure."""

    async def main(world: World) -> None:
        tracked = world.track()
        (node,) = await world.awake()
        await world.look(301.0)
        world.pool.end(node)
        await settle()

        assert world.pool.orders == [("v", 1), ("v", 0)]
        assert tracked.failures.count == 0

    run(main)


def test_the_first_crash_at_start_is_tried_again_at_once() -> None:
    """It may have been somebody's `kill`; those who wait notice nothing."""

    async def main(world: World) -> None:
        world.track()
        asker = await world.asked()
        await world.crash_at_start("killed")
        assert world.pool.orders == [("v", 1)] * 2
        assert not asker.task.done()

        world.pool.ready(world.pool.only())
        await settle()
        assert asker.served

    run(main)


def test_three_crashes_at_start_in_a_row_fail_those_who_wait() -> None:
    """The second is tried again after a second; the third is told to all who ask, and to the owner."""

    async def main(world: World) -> None:
        world.track()
        asker = await world.asked()
        await world.crash_at_start("one")
        await world.crash_at_start("two")
        assert len(world.pool.orders) == 2
        late = await world.asked()
        await world.look(0.9)
        assert len(world.pool.orders) == 2
        await world.look(0.1)
        assert len(world.pool.orders) == 3
        assert not asker.task.done()
        assert not late.task.done()

        await world.crash_at_start("three")
        for one in (asker, late):
            assert isinstance(one.error, StartFailedError)
            assert (one.error.reason, one.error.retry_after) == ("three", 2.0)
        assert world.troubles == [("v", "three")]
        world.clock.advance(1.5)
        refused = await world.asked()
        assert isinstance(refused.error, StartFailedError)
        assert (refused.error.reason, refused.error.retry_after) == ("three", 0.5)
        assert len(world.pool.orders) == 3

    run(main)


def test_a_success_after_failures_clears_them() -> None:
    """The trouble at once; the count once the node has served."""

    async def main(world: World) -> None:
        tracked = world.track()
        await world.asked()
        await world.crash_at_start("no such file", is_permanent=True)
        assert world.troubles == [("v", "no such file")]

        world.clock.advance(1.0)
        asker = await world.asked()
        assert len(world.pool.orders) == 2
        world.pool.ready(world.pool.only())
        await settle()
        assert asker.served
        assert world.troubles[1:] == [("v", "")]
        await world.look(1.0)
        assert (tracked.failures.count, tracked.failures.permanent) == (0, False)

    run(main)


def test_a_hopeless_failure_is_told_at_once() -> None:
    """Another node would fare no better; the more often, the longer until the next try."""

    async def main(world: World) -> None:
        tracked = world.track()
        delays = []
        for _ in range(8):
            asker = await world.asked()
            await world.crash_at_start("no such file", is_permanent=True)
            assert isinstance(asker.error, StartFailedError)
            assert asker.error.reason == "no such file"
            delays.append(asker.error.retry_after)
            world.clock.advance(asker.error.retry_after)

        assert delays == [1, 2, 4, 8, 16, 32, 60, 60]
        assert len(world.pool.orders) == 8
        assert tracked.wakeups == {"failed": 8}

    run(main)


def test_a_burst_while_the_next_try_is_held_back_costs_nothing() -> None:
    """All wait, none starts anything, none has anything decided; the tick does when it is time."""

    async def main(world: World) -> None:
        world.track(start_seconds=3.0)
        await world.asked()
        await world.crash_at_start("one")
        await world.crash_at_start("two")
        looks, orders = world.pool.looks, len(world.pool.orders)
        askers = [world.ask() for _ in range(500)]
        hasty = world.ask(deadline=FakeDeadline(remaining=3.9))
        await settle()
        assert len(world.pool.orders) == orders
        assert world.pool.looks - looks == 501  # each whether there is a node, and that is all
        assert world.activator.count_waiting("v") == 501
        assert isinstance(hasty.error, TooLateError)
        assert hasty.error.retry_after == pytest.approx(4.0)

        await world.look(1.0)
        world.pool.ready(world.pool.only())
        await settle()
        assert sum(asker.served for asker in askers) == 3

    run(main)


def test_after_a_failure_one_node_is_tried_first() -> None:
    """However many are wanted; once it has served, the others follow."""

    async def main(world: World) -> None:
        world.track(max_nodes=4)
        for _ in range(20):
            world.ask()
        await settle()
        await world.crash_at_start("killed")
        await world.ticks(8)
        assert world.pool.orders == [("v", 1), ("v", 1)]

        world.pool.ready(world.pool.only())
        await settle()
        await world.ticks(1)
        assert world.pool.orders == [("v", 1), ("v", 1), ("v", 4)]

    run(main)


def test_one_of_two_starts_may_fail() -> None:
    """As long as another node is starting, those who wait go on waiting, and who comes may wait too."""

    async def main(world: World) -> None:
        world.track(min_nodes=2)
        await world.look()
        first, second = world.pool.nodes("v")
        asker = await world.asked()
        world.pool.crash(first, "no such file", is_permanent=True)
        late = await world.asked()
        assert not asker.task.done()
        assert not late.task.done()

        world.pool.ready(second)
        await settle()
        assert asker.served
        assert late.served
        assert world.troubles == [("v", "no such file"), ("v", "")]

    run(main)


def test_nodes_that_die_soon_and_unused_count_as_failed_starts() -> None:
    """Ready is not enough: it has to last ten seconds, or to serve."""

    async def main(world: World) -> None:
        tracked = world.track(min_nodes=1)
        await world.look()
        for crashes, wait in ((1, 0.0), (2, 1.0), (3, 2.0)):
            node = world.pool.ready(world.pool.only())
            assert not tracked.failures.permanent
            world.clock.advance(9.9)
            world.pool.crash(node, "It did not last.")
            await settle()
            assert tracked.failures.count == crashes
            orders = len(world.pool.orders)
            await world.look(wait)
            assert len(world.pool.orders) == (orders + 1 if wait else orders)
        assert world.troubles[-1] == ("v", "It did not last.")

        world.pool.ready(world.pool.only())
        await world.look(10.1)
        assert tracked.failures.count == 0

    run(main)


def test_a_version_with_a_lower_bound_is_tried_again_and_again() -> None:
    """Though nobody asks for it, and however long it takes."""

    async def main(world: World) -> None:
        world.track(min_nodes=1)
        await world.look()
        for delay in (1, 2, 4, 8):
            await world.crash_at_start("no such file", is_permanent=True)
            orders = len(world.pool.orders)
            await world.ticks(delay - 1)
            assert len(world.pool.orders) == orders
            await world.ticks(1)
            assert len(world.pool.orders) == orders + 1

    run(main)


def test_a_pool_that_cannot_start_processes_fails_those_who_wait(caplog: pytest.LogCaptureFixture) -> None:
    """With the system's reason, whatever it is; the next try comes later."""

    async def main(world: World) -> None:
        tracked = world.track()
        for failure in (OSError("Resource temporarily unavailable"), RuntimeError("a bug")):
            world.pool.failure = failure
            asker = await world.asked()
            assert isinstance(asker.error, StartFailedError)
            assert asker.error.reason == f"Cannot start a process: {failure}"
            assert world.troubles[-1] == ("v", asker.error.reason)
            world.clock.advance(asker.error.retry_after)
        assert world.pool.orders == [("v", 1)] * 2
        assert tracked.wakeups == {"failed": 2}

        world.pool.failure = None
        again = await world.asked()
        world.pool.ready(world.pool.only())
        await settle()
        assert again.served

    with caplog.at_level(logging.CRITICAL):
        run(main)


@pytest.mark.parametrize("where", ["pool", "node"])
def test_a_machine_that_is_short_of_something_fails_no_version(where: str) -> None:
    """Requests wait, it is tried again every second, and the supervision tells of it until it works."""

    async def main(world: World) -> None:
        tracked = world.track()
        shortage = BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        world.pool.failure = shortage if where == "pool" else None
        asker = await world.asked()
        for number in range(1, 10):
            if where == "node":
                world.pool.only().starved = True
                world.pool.crash(world.pool.only(), "Cannot start a process: [Errno 11]")
                await settle()
            assert len(world.pool.orders) == number
            assert "No node can be started: Cannot start a process: [Errno 11]" in world.trouble()
            await world.look(1.0)
        world.pool.failure = None
        await world.look(1.0)
        world.pool.ready(world.pool.only())
        await settle()

        assert asker.served
        assert world.troubles == [("v", "")]
        assert tracked.failures.count == 0
        assert world.trouble() == ""

    run(main)


def test_a_pool_that_cannot_stop_nodes_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    """At the next tick; the version serves on, and has not failed."""

    async def main(world: World) -> None:
        tracked = world.track()
        await world.awake()
        world.pool.failure = OSError("no")
        await world.look(301.0)
        await world.look(1.0)
        assert world.pool.orders == [("v", 1), ("v", 0), ("v", 0)]
        assert tracked.failures.count == 0
        assert world.troubles == [("v", "")]

    with caplog.at_level(logging.CRITICAL):
        run(main)
