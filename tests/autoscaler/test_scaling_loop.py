"""The autoscaler with a pool and a clock that do what a test says: what it sees, decides and has done."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from autoscaler.activator import Activator
from autoscaler.decision import ScalingSpec
from autoscaler.errors import RetiredError, StartFailedError, TooLateError
from autoscaler.pools import Node, NodeState
from autoscaler.scaling_loop import Autoscaler
from autoscaler.supervision import Supervisor
from autoscaler.version_scaler import VersionScaler
from tests.autoscaler.fakes import MIB, Asker, Clock, FakePatience, FakePool, settle, spec


class World:
    """An autoscaler and all that it works with; `free` bytes are left on the machine."""

    def __init__(self, *, tick: float = 1.0, memory_bytes: int = 0) -> None:
        self.clock = Clock()
        self.free = 1 << 40
        self.free_failure: Exception | None = None
        self.memory_reads = 0
        self.troubles: list[tuple[str, str]] = []
        self.activator = Activator(queue_requests=2000, queue_bytes=1 << 20, clock=self.clock)
        self.pool = FakePool(self.clock, free=self._free_memory)
        self.supervisor = Supervisor(clock=self.clock)
        self.autoscaler = self.start(tick, memory_bytes)

    def start(self, tick: float = 1.0, memory_bytes: int = 0) -> Autoscaler:
        autoscaler = Autoscaler(
            self.activator,
            self.pool,
            tick=tick,
            memory_bytes=memory_bytes,
            on_trouble=lambda key, reason: self.troubles.append((key, reason)),
            supervisor=self.supervisor,
            clock=self.clock,
        )
        self.activator.connect_waker(autoscaler)
        self.pool.listeners[:] = [self.activator.on_node_changed, autoscaler.on_node_changed]
        return autoscaler

    def _free_memory(self) -> int:
        self.memory_reads += 1
        if self.free_failure is not None:
            raise self.free_failure
        return self.free

    def track(
        self,
        key: str = "v",
        *,
        concurrency: int = 4,
        memory: int = 100 * MIB,
        start_seconds: float | None = None,
        min_nodes: int = 0,
        max_nodes: int = 4,
        exact_nodes: int | None = None,
    ) -> VersionScaler:
        scaling = ScalingSpec(
            min_nodes=min_nodes, max_nodes=max_nodes, exact_nodes=exact_nodes, target_concurrency=1.0
        )
        self.autoscaler.track_version(
            spec(key, concurrency), scaling, memory=memory, start_seconds=start_seconds
        )
        return self.autoscaler.versions[key]

    def ask(self, key: str = "v", *, concurrency: int = 4, patience: FakePatience | None = None) -> Asker:
        return Asker(self.activator, spec(key, concurrency), 1, patience)

    async def asked(self, key: str = "v") -> Asker:
        asker = self.ask(key)
        await settle()
        return asker

    def trouble(self) -> str:
        """Why the program should not be trusted with work."""
        return " ".join(self.supervisor.list_troubles())

    async def look(self, seconds: float = 0.0) -> None:
        """One tick, so many seconds later."""
        self.clock.advance(seconds)
        self.autoscaler.reconcile()
        await settle()

    async def ticks(self, seconds: int) -> None:
        for _ in range(seconds):
            await self.look(1.0)

    async def awake(self, key: str = "v", *, memory: int = 0, nodes: int = 1) -> list[Node]:
        """A version with ready nodes and nothing to do."""
        asker = await self.asked(key)
        self.pool.ready(self.pool.only(key), memory=memory)
        await settle()
        asker.let_go.set()
        await settle()
        for _ in range(nodes - 1):
            self.pool.ready(self.pool.start(spec(key)), memory=memory)
        return list(self.pool.nodes(key))

    async def crash_at_start(self, reason: str, *, hopeless: bool = False) -> None:
        self.pool.crash(self.pool.only(), reason, hopeless=hopeless)
        await settle()


def run(main: Callable[[World], Awaitable[None]], *, tick: float = 1.0, memory_bytes: int = 0) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            world = World(tick=tick, memory_bytes=memory_bytes)
            try:
                await main(world)
            finally:
                # What is left over waits for somebody who is gone.
                others = asyncio.all_tasks() - {asyncio.current_task()}
                for task in others:
                    task.cancel()
                await asyncio.gather(*others, return_exceptions=True)

    asyncio.run(bounded())


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
        hasty = world.ask(patience=FakePatience(remaining=2.0))
        await settle()
        assert isinstance(hasty.error, TooLateError)
        assert hasty.error.retry_after == 8.0
        assert world.pool.orders == [("v", 1)]

        await world.ticks(3)
        again = world.ask(patience=FakePatience(remaining=2.0))
        await settle()
        assert isinstance(again.error, TooLateError)
        assert again.error.retry_after == pytest.approx(5.0)
        await world.ticks(4)
        world.pool.ready(world.pool.only())
        await world.ticks(1)
        third = world.ask(patience=FakePatience(remaining=2.0))
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
        hasty = world.ask(patience=FakePatience(remaining=2.0))
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


# ---- nodes that die


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
        await world.crash_at_start("no such file", hopeless=True)
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
            await world.crash_at_start("no such file", hopeless=True)
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
        hasty = world.ask(patience=FakePatience(remaining=3.9))
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
        world.pool.crash(first, "no such file", hopeless=True)
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
            await world.crash_at_start("no such file", hopeless=True)
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


# ---- memory


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
        patience = FakePatience(remaining=5)
        unlucky, lucky = world.ask(patience=patience), world.ask()
        await world.ticks(5)
        assert ("v", 1) not in world.pool.orders
        assert not unlucky.task.done()

        patience.end()
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
        forgetting = asyncio.create_task(world.autoscaler.forget_version("old"))
        await settle()
        inside.let_go.set()
        world.free = 120 * MIB
        world.pool.end(node)
        await settle()

        assert world.pool.orders[-1] == ("v", 1)
        assert forgetting.done()

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
        forgetting = asyncio.create_task(world.autoscaler.forget_version("v"))
        await settle()
        assert isinstance(waiting.error, RetiredError)
        assert inside.served
        assert not forgetting.done()
        assert node.state is NodeState.DRAINING

        again = asyncio.create_task(world.autoscaler.forget_version("v"))
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
        await world.autoscaler.forget_version("v")  # once more is no error

    run(main)


def test_forgetting_a_version_that_is_being_started_waits_for_that_too() -> None:
    """The order to stop must not come before the order to start."""

    async def main(world: World) -> None:
        world.track()
        world.pool.open.clear()
        asker = await world.asked()
        forgetting = asyncio.create_task(world.autoscaler.forget_version("v"))
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
        forgetting = asyncio.create_task(world.autoscaler.forget_version("v"))
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
            world.ask(patience=FakePatience(remaining=1.0))
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
        assert tracked.idle_seconds == 4.0

        world.pool.drain(node)
        await world.ticks(2)
        world.pool.end(node)
        await world.ticks(5)
        assert tracked.node_seconds(world.pool.nodes("v"), world.clock()) == 11.0
        assert tracked.idle_seconds == 4.0

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


# ---- whatever happens, in whatever order


class Errors(logging.Handler):
    """Collects what went wrong and was only logged."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


class Chaos(RuleBasedStateMachine):
    """Three versions, too little memory for all of them, nodes that do not start or do not last."""

    KEYS, NODES, MOST = "abc", 4, 3

    @initialize()
    def begin(self) -> None:
        self.runner = asyncio.Runner()
        self.errors = Errors()
        logging.getLogger("autoscaler.scaling_loop").addHandler(self.errors)
        self.askers: list[Asker] = []

        async def make() -> World:
            return World()

        self.world = self.runner.run(make())
        for key in self.KEYS:
            self.world.track(key, max_nodes=self.MOST)

    def act(self, what: Callable[[], object]) -> None:
        async def main() -> None:
            what()
            # What nodes take is what nobody else has; what drains has not given it back.
            taken = sum(100 * MIB for node in self.world.pool.living if node.state is not NodeState.STARTING)
            self.world.free = self.NODES * 120 * MIB - taken
            await settle()

        self.runner.run(main())

    def living(self, key: str) -> list[Node]:
        starting_or_ready = (NodeState.STARTING, NodeState.READY)
        return [node for node in self.world.pool.nodes(key) if node.state in starting_or_ready]

    def in_state(self, state: NodeState) -> list[Node]:
        return [node for node in self.world.pool.living if node.state is state]

    def alive(self) -> list[Asker]:
        return [asker for asker in self.askers if not asker.task.done()]

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=12))
    def ask(self, keys: list[str]) -> None:
        self.act(lambda: self.askers.extend(self.world.ask(key) for key in keys))

    @precondition(lambda self: self.alive())
    @rule(data=st.data(), how=st.sampled_from(["let go", "cancel", "give up"]))
    def end(self, data: st.DataObject, how: str) -> None:
        asker = data.draw(st.sampled_from(self.alive()))
        ends: dict[str, Callable[[], object]] = {
            "let go": asker.let_go.set,
            "cancel": asker.task.cancel,
            "give up": asker.patience.end,
        }
        self.act(ends[how])

    @precondition(lambda self: self.in_state(NodeState.STARTING))
    @rule(data=st.data(), how=st.sampled_from(["ready", "ready", "crash", "fail"]))
    def start_ends(self, data: st.DataObject, how: str) -> None:
        node = data.draw(st.sampled_from(self.in_state(NodeState.STARTING)))
        if how == "ready":
            self.act(lambda: self.world.pool.ready(node, memory=100 * MIB))
        else:
            self.act(lambda: self.world.pool.crash(node, "no", hopeless=how == "fail"))

    @precondition(lambda self: self.in_state(NodeState.READY))
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from(self.in_state(NodeState.READY)))
        self.act(lambda: self.world.pool.crash(node))

    @precondition(lambda self: self.in_state(NodeState.DRAINING))
    @rule(data=st.data())
    def drained(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from(self.in_state(NodeState.DRAINING)))
        self.act(lambda: self.world.pool.end(node))

    @rule(seconds=st.sampled_from([0.1, 1.0, 10.0, 70.0, 310.0]))
    def tick(self, seconds: float) -> None:
        self.world.clock.advance(seconds)
        self.act(self.world.autoscaler.reconcile)

    @rule(key=st.sampled_from(KEYS), least=st.integers(0, 1))
    def patch(self, key: str, least: int) -> None:
        self.act(lambda: self.world.track(key, min_nodes=least, max_nodes=self.MOST))

    @rule()
    def hold_orders(self) -> None:
        self.act(self.world.pool.open.clear)

    @rule()
    def let_orders_through(self) -> None:
        self.act(self.world.pool.open.set)

    @invariant()
    def nothing_goes_wrong(self) -> None:
        assert self.errors.records == []

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        """Whoever waits without a node does so for an order, a next try or memory."""
        if not self.world.pool.open.is_set():
            return
        for key in self.KEYS:
            tracked = self.world.autoscaler.versions[key]
            if self.world.activator.count_waiting(key) and not self.living(key):
                assert tracked.shortage_reason or tracked.failures.is_blocked(self.world.clock())

    @invariant()
    def bounds_hold(self) -> None:
        for key in self.KEYS:
            assert len(self.living(key)) <= self.MOST
            assert self.world.activator.meter_of(spec(key)).level == sum(
                asker.spec.key == key for asker in self.alive()
            )
        assert len(self.world.pool.living) <= self.NODES

    def teardown(self) -> None:
        """When nothing fails any more all is as it should be; when nobody asks any more all fall asleep."""
        if not hasattr(self, "runner"):
            return
        self.let_orders_through()
        for _ in range(150):
            self.settle_nodes()
            self.tick(1.0)
            for asker in self.alive():
                if asker.served:
                    self.act(asker.let_go.set)
        assert self.alive() == []
        for key in self.KEYS:
            assert len(self.living(key)) >= self.world.autoscaler.versions[key].floor
            self.patch(key, 0)
        for _ in range(10):
            self.settle_nodes()
            self.tick(310.0)
        assert self.world.pool.living == []
        looks = self.world.pool.looks
        self.world.autoscaler.reconcile()
        assert self.world.pool.looks == looks
        logging.getLogger("autoscaler.scaling_loop").removeHandler(self.errors)
        self.runner.close()

    def settle_nodes(self) -> None:
        for node in self.in_state(NodeState.STARTING):
            self.act(partial(self.world.pool.ready, node, memory=100 * MIB))
        for node in self.in_state(NodeState.DRAINING):
            if not node.in_flight:
                self.act(partial(self.world.pool.end, node))


TestChaos = Chaos.TestCase
TestChaos.settings = settings(
    max_examples=40, stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow]
)
