"""Requests, nodes and the waiting in between: who gets what, when, and that nothing is lost on the way."""

from __future__ import annotations

import asyncio

import pytest

from autoscaler.activator import Activator, StartEstimate
from autoscaler.errors import QueueFullError, RetiredError, StartFailedError, TooLateError
from autoscaler.node_memory import Mark
from autoscaler.pools import Node
from tests.autoscaler.activation import World, run
from tests.autoscaler.fakes import FakeDeadline, settle, spec


def test_a_request_wakes_its_version_and_waits() -> None:
    """Each that finds no ready node says so; all of them get the node when it is ready."""

    async def main(world: World) -> None:
        askers = await world.asks(3)
        assert world.waker.woken == ["v"] * 3
        assert [asker.node for asker in askers] == [None] * 3
        assert world.activator.count_waiting("v") == 3

        node = await world.node()

        assert [asker.node for asker in askers] == [node] * 3
        assert node.in_flight == 3
        assert world.activator.count_waiting("v") == 0
        for asker in askers:
            asker.let_go.set()
        await settle()
        assert node.in_flight == 0

    run(main)


def test_the_waker_finds_the_request_counted() -> None:
    """Or it would decide that nobody needs a node."""

    async def main(world: World) -> None:
        await world.asks(2)

        assert world.waker.levels == [1, 2]

    run(main)


def test_a_ready_node_is_lent_at_once() -> None:
    """Without a turn of the event loop, without waking anybody, and it says that nobody had to wait."""

    async def main(world: World) -> None:
        world.activator.meter_of(spec())
        assert world.activator.try_lease(spec()) is None
        node = await world.node()
        entering = world.activator.lease(spec(), 1, FakeDeadline(expired=True)).__aenter__()
        with pytest.raises(StopIteration) as entered:
            entering.send(None)

        lease = entered.value.value
        assert lease.node is node
        assert node.in_flight == 1
        assert lease.arrived is None
        assert world.waker.woken == []

    run(main)


def test_a_lease_knows_when_it_began_to_wait_and_when_it_was_granted() -> None:
    """Both on the clock that nodes tell their times on."""

    async def main(world: World) -> None:
        world.clock.now = 100.0
        asker = world.ask()
        await settle()
        world.clock.now = 103.5
        await world.node()

        assert (asker.arrived, asker.granted) == (100.0, 103.5)

    run(main)


def test_places_are_granted_in_order() -> None:
    """First come, first served; a late request does not overtake those who wait."""

    async def main(world: World) -> None:
        askers = await world.asks(4, concurrency=1)
        node = await world.node(concurrency=1)
        askers.append(world.ask(concurrency=1))
        await settle()
        for served in range(5):
            assert [asker.node is not None for asker in askers] == [number <= served for number in range(5)]
            assert node.in_flight == 1
            askers[served].let_go.set()
            await settle()
        assert node.in_flight == 0

    run(main)


def test_a_request_that_comes_as_a_place_falls_free_goes_behind_those_who_wait() -> None:
    """Also when they have their place but have not been told."""

    async def main(world: World) -> None:
        first, second = await world.asks(2, concurrency=1)
        node = await world.node(concurrency=1)
        first.let_go.set()
        late = world.ask(concurrency=1)
        await settle()

        assert second.node is node
        assert late.node is None

    run(main)


def test_the_least_loaded_node_is_lent() -> None:
    """Up to the concurrency of each; who finds all of them full waits."""

    async def main(world: World) -> None:
        askers = await world.asks(1, concurrency=2)
        first = await world.node(concurrency=2)
        second = await world.node(concurrency=2)
        for _ in range(4):
            askers += await world.asks(1, concurrency=2)

        assert [asker.node for asker in askers[:2]] == [first, second]
        assert first.in_flight == second.in_flight == 2
        assert askers[4].node is None
        assert world.waker.woken == ["v"]

    run(main)


def test_each_request_inside_a_node_has_a_slot_of_its_own() -> None:
    """And what the node had noted there of another request is wiped off."""

    async def main(world: World) -> None:
        askers = await world.asks(4)
        node = await world.node()
        assert sorted(asker.slot for asker in askers) == [0, 1, 2, 3]
        assert [node.read_mark(asker.slot) for asker in askers] == [Mark.UNTOUCHED] * 4

        node.shared.marks[askers[2].slot] = Mark.COMPUTED
        askers[2].let_go.set()
        (late,) = await world.asks(1)

        assert late.slot == askers[2].slot
        assert node.read_mark(late.slot) is Mark.UNTOUCHED

    run(main)


def test_what_is_given_back_goes_to_who_waits() -> None:
    """Also when the one who waits came while another node was still starting."""

    async def main(world: World) -> None:
        first, second = await world.asks(2, concurrency=1)
        world.pool.start(spec(concurrency=1))
        node = await world.node(concurrency=1)
        assert (first.node, second.node) == (node, None)

        first.let_go.set()
        await settle()

        assert second.node is node

    run(main)


def test_the_queue_is_bounded_in_requests() -> None:
    """Per version; the error names the setting, and the refusal is noted."""

    async def main(world: World) -> None:
        askers = await world.asks(3)
        other = world.ask("other")
        await settle()

        assert [asker.error for asker in askers[:2]] == [None, None]
        error = askers[2].error
        assert isinstance(error, QueueFullError)
        assert (error.setting, error.limit) == ("queue_requests", 2)
        assert world.waker.refusals == [("v", error)]
        assert world.waker.woken == ["v", "v", "other"]
        assert other.error is None

    run(main, queue_requests=2)


def test_the_queue_is_bounded_in_bytes() -> None:
    """Over all versions; a request alone may have any size, and places come free again."""

    async def main(world: World) -> None:
        huge = world.ask(size=5000)
        await settle()
        second = world.ask("other")
        await settle()
        assert huge.error is None
        assert isinstance(second.error, QueueFullError)
        assert second.error.setting == "queue_bytes"

        await world.node()
        third = world.ask("other")
        await settle()
        assert third.error is None

    run(main, queue_bytes=100)


def test_who_gives_up_leaves_no_trace() -> None:
    """Neither in the queue nor, when the node came that very moment, in the node."""

    async def main(world: World) -> None:
        first = world.ask(concurrency=1, size=60)
        second = world.ask(concurrency=1, size=40)
        await settle()
        first.task.cancel()
        await settle()
        third = world.ask(concurrency=1, size=60)
        await settle()
        assert third.error is None

        node = world.pool.ready(world.pool.start(spec(concurrency=1)))
        second.task.cancel()  # the node is its own already, but it has not seen it
        await settle()

        assert second.node is None
        assert third.node is node
        assert node.in_flight == 1
        assert len(node.slots) == 0
        assert world.activator.meter_of(spec()).level == 1

    run(main, queue_bytes=100)


def test_who_gives_up_in_the_moment_of_the_grant_gives_the_place_back() -> None:
    """When a wait ends with an error although the node was there."""

    async def main(world: World) -> None:
        deadline = FakeDeadline()

        async def wait(granted: asyncio.Future[Node]) -> Node:
            await granted
            raise TimeoutError

        deadline.wait = wait  # type: ignore[method-assign]
        asker = world.ask(deadline=deadline)
        await settle()
        node = await world.node()

        assert isinstance(asker.error, TimeoutError)
        assert node.in_flight == 0
        assert sorted(node.slots) == [0, 1, 2, 3]
        assert world.activator.meter_of(spec()).level == 0

    run(main)


def test_a_wait_may_raise_what_it_likes() -> None:
    """The deadline of a request is its own."""

    async def main(world: World) -> None:
        refused = world.ask(deadline=FakeDeadline(expired=True))
        patient = world.ask()
        await settle()
        node = await world.node()

        assert isinstance(refused.error, TimeoutError)
        assert patient.node is node
        assert node.in_flight == 1

    run(main)


def test_a_node_that_dies_leaves_those_who_wait_in_peace() -> None:
    """Those whom it served find out by themselves; the next node serves the others."""

    async def main(world: World) -> None:
        served, waiting = await world.asks(2, concurrency=1)
        node = await world.node(concurrency=1)
        world.pool.crash(node)
        await settle()
        assert served.node is node
        served.let_go.set()
        await settle()
        assert waiting.node is None

        replacement = await world.node(concurrency=1)
        assert waiting.node is replacement

    run(main)


def test_a_draining_node_is_lent_no_more() -> None:
    """Its requests finish, it is told when the last has, and the next request wakes another one."""

    async def main(world: World) -> None:
        (asker,) = await world.asks(1)
        node = await world.node()
        world.pool.drain(node)
        (late,) = await world.asks(1)
        assert asker.served
        assert late.node is None
        assert world.waker.woken == ["v", "v"]
        assert not node.empty.is_set()

        asker.let_go.set()
        await settle()
        assert node.empty.is_set()
        assert late.node is None

    run(main)


def test_those_who_wait_can_be_told_that_it_is_in_vain() -> None:
    """Those of that version; the refusals are noted, and the queue is empty."""

    async def main(world: World) -> None:
        askers = [world.ask(size=40), world.ask(size=40)]
        other = world.ask("other")
        await settle()
        world.activator.fail_waiting("v", StartFailedError("no such file"))
        await settle()

        assert [type(asker.error) for asker in askers] == [StartFailedError] * 2
        assert [str(error) for _, error in world.waker.refusals] == ["no such file"] * 2
        assert other.error is None
        assert world.activator.count_waiting("v") == 0
        again = world.ask(size=90)
        await settle()
        assert again.error is None

    run(main, queue_bytes=100)


def test_a_version_that_keeps_failing_refuses_at_once() -> None:
    """The waker says so; nothing of the request stays."""

    async def main(world: World) -> None:
        world.waker.failure = StartFailedError("no such file", retry_after=7)
        asker = world.ask()
        await settle()

        assert asker.error is world.waker.failure
        assert world.waker.refusals == [("v", asker.error)]
        assert world.activator.count_waiting("v") == 0
        assert world.activator.meter_of(spec()).level == 0

    run(main)


def test_who_cannot_wait_long_enough_is_told_at_once() -> None:
    """And when to come again; the node was woken all the same."""

    async def main(world: World) -> None:
        world.waker.outlook = StartEstimate(8.0, "It takes 8 s.")
        hasty = world.ask(deadline=FakeDeadline(remaining=7.9))
        calm = world.ask(deadline=FakeDeadline(remaining=8.1))
        await settle()

        assert isinstance(hasty.error, TooLateError)
        assert (hasty.error.reason, hasty.error.retry_after) == ("It takes 8 s.", 8.0)
        assert calm.error is None
        assert world.waker.woken == ["v", "v"]
        assert world.waker.refusals == [("v", hasty.error)]
        assert world.activator.meter_of(spec()).level == 1

    run(main)


def test_who_waited_in_vain_for_a_node_is_told_so() -> None:
    """Not the model was slow: there was no node of it; the outlook says why, and for how long still."""

    async def main(world: World) -> None:
        deadline = FakeDeadline()
        asker = world.ask(deadline=deadline)
        await settle()
        world.waker.outlook = StartEstimate(3.0, "It takes 9 s.")
        deadline.end()
        await settle()

        assert isinstance(asker.error, TooLateError)
        assert (asker.error.reason, asker.error.retry_after) == ("It takes 9 s.", 3.0)
        assert isinstance(asker.error.__cause__, TimeoutError)
        assert world.waker.refusals == [("v", asker.error)]
        assert world.activator.meter_of(spec()).level == 0

    run(main)


def test_a_timer_that_fires_a_little_early_is_a_timer() -> None:
    """Clocks of event loops count in milliseconds."""

    async def main(world: World) -> None:
        deadline = FakeDeadline()
        asker = world.ask(deadline=deadline)
        await settle()
        deadline.end()
        deadline.remaining = 0.0004
        await settle()

        assert isinstance(asker.error, TooLateError)

    run(main)


def test_with_an_unknown_outlook_coming_again_makes_sense_soon() -> None:
    """Memory may be short for a second or for an hour."""

    async def main(world: World) -> None:
        world.waker.outlook = StartEstimate(None, "No memory.")
        deadline = FakeDeadline(remaining=0.5)
        asker = world.ask(deadline=deadline)
        await settle()
        assert world.activator.count_waiting("v") == 1

        deadline.end()
        await settle()
        assert isinstance(asker.error, TooLateError)
        assert (asker.error.reason, asker.error.retry_after) == ("No memory.", 1.0)

    run(main)


def test_who_waited_in_vain_for_a_version_that_fails_is_told_why() -> None:
    """What the waker says last counts."""

    async def main(world: World) -> None:
        deadline = FakeDeadline()
        asker = world.ask(deadline=deadline)
        await settle()
        world.waker.failure = StartFailedError("no such file")
        deadline.end()
        await settle()

        assert asker.error is world.waker.failure

    run(main)


def test_who_waits_for_a_place_in_a_busy_node_runs_out_of_time_as_usual() -> None:
    """There is a node: the time-out is the request's own."""

    async def main(world: World) -> None:
        await world.asks(1, concurrency=1)
        await world.node(concurrency=1)
        deadline = FakeDeadline()
        late = world.ask(concurrency=1, deadline=deadline)
        await settle()
        deadline.end()
        await settle()

        assert isinstance(late.error, TimeoutError)
        assert world.waker.woken == ["v"]
        assert world.waker.refusals == []

    run(main)


def test_who_waited_for_a_node_that_came_too_late_is_told_so() -> None:
    """It was ready before the end, and others that had come before got its places."""

    async def main(world: World) -> None:
        await world.asks(1, concurrency=1)
        deadline = FakeDeadline()
        second = world.ask(concurrency=1, deadline=deadline)
        await settle()
        world.clock.advance(19.5)
        await world.node(concurrency=1)
        deadline.end()
        await settle()

        assert isinstance(second.error, TooLateError)
        assert second.error.reason == (
            "A node of version v was ready only after 19.5 s, with other requests before this one."
        )

    run(main)


def test_a_cancelled_request_stays_cancelled() -> None:
    """Even if its time is over: the server stops, and nobody is to be woken."""

    async def main(world: World) -> None:
        deadline = FakeDeadline()
        asker = world.ask(deadline=deadline)
        await settle()
        deadline.remaining = 0.0
        asker.task.cancel()
        await settle()

        assert asker.task.cancelled()
        assert world.waker.woken == ["v"]
        assert world.waker.refusals == []

    run(main)


def test_who_is_told_the_reason_in_the_last_moment_hears_that_reason() -> None:
    """Not that there is no node, which it knows."""

    async def main(world: World) -> None:
        deadline = FakeDeadline()
        asker = world.ask(deadline=deadline)
        await settle()
        world.activator.retire_version("v")
        deadline.remaining = 0.0
        await settle()

        assert isinstance(asker.error, RetiredError)
        assert world.waker.woken == ["v"]

    run(main)


def test_before_there_is_a_waker_nobody_waits() -> None:
    """The server is starting; the queue stays empty."""

    async def main() -> None:
        activator = Activator(queue_requests=1, queue_bytes=1)
        for _ in range(3):
            with pytest.raises(TooLateError):
                await activator.lease(spec(), 1, FakeDeadline()).__aenter__()
        assert activator.count_waiting("v") == 0
        assert activator.meter_of(spec()).level == 0

    asyncio.run(main())


def test_a_retired_version_fails_those_who_wait() -> None:
    """And its nodes are no longer spoken of."""

    async def main(world: World) -> None:
        served, waiting = await world.asks(2, concurrency=1)
        node = await world.node(concurrency=1)

        world.activator.retire_version("v")
        await settle()
        assert isinstance(waiting.error, RetiredError)
        assert world.activator.count_waiting("v") == 0
        served.let_go.set()
        await settle()
        assert node.in_flight == 0
        world.pool.end(node)
        world.activator.retire_version("v")  # twice is no error

    run(main)


def test_the_meter_adds_up_what_runs_and_waits() -> None:
    """From arrival to end, whatever the end; `last_end` is the latest of them."""

    async def main(world: World) -> None:
        clock, meter = world.clock, world.activator.meter_of(spec())
        begin = clock.now
        assert (meter.level, meter.last_end) == (0, begin)

        first, second = await world.asks(2)
        clock.advance(3)
        await world.node()
        assert meter.level == 2
        clock.advance(1)
        first.let_go.set()
        await settle()
        assert (meter.level, meter.last_end) == (1, begin + 4)
        clock.advance(2)
        second.task.cancel()
        await settle()

        assert (meter.level, meter.last_end) == (0, begin + 6)
        assert meter.integral_at(clock.now + 9) == 2 * 4 + 2

    run(main)
