"""Loops and tasks in the background: an error ends none of them, and what does end is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from autoscaler.supervision import Supervisor
from tests.autoscaler.fakes import Clock, settle
from tests.bounds import HANG_SECONDS


class World:
    """A supervisor, and a loop that does a round whenever `go` is set, in the way that `work` is."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.deaths: list[str] = []
        self.supervisor = Supervisor(self.deaths.append, self.clock)
        self.go = asyncio.Event()
        self.rounds = 0
        self.error: BaseException | None = None
        self.held = asyncio.Event()
        self.held.set()

    async def wait(self) -> None:
        await self.go.wait()
        self.go.clear()

    async def work(self) -> None:
        await self.held.wait()
        if self.error is not None:
            raise self.error
        self.rounds += 1

    async def until_rounds(self, number: int) -> None:
        while self.rounds < number:  # noqa: ASYNC110  there is no event for it
            await asyncio.sleep(0.001)


def run(main: Callable[[World], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(HANG_SECONDS):
            world = World()
            async with world.supervisor:
                world.supervisor.start_loop("tested", world.wait, world.work, within=10)
                await main(world)

    asyncio.run(bounded())


def test_trouble_is_told_until_it_is_cleared_or_noted_no_more() -> None:
    """What is tried no more cannot be told to be over: then nobody knows that it is not."""

    async def main(world: World) -> None:
        supervisor = world.supervisor
        supervisor.report_trouble("starts", "No node can be started.")
        world.clock.advance(4.9)
        supervisor.report_trouble("starts", "No node can be started: why.")
        world.clock.advance(4.9)
        assert supervisor.list_troubles() == ["No node can be started: why."]
        world.clock.advance(0.2)
        assert supervisor.list_troubles() == []

        supervisor.report_trouble("starts", "Again.")
        supervisor.clear_trouble("starts")
        assert supervisor.list_troubles() == []

    run(main)


def test_an_error_ends_no_loop(caplog: pytest.LogCaptureFixture) -> None:
    """It is counted, logged with its traceback, and the work is tried again."""

    async def main(world: World) -> None:
        world.error = OSError("no room")
        world.go.set()
        while world.supervisor.errors["tested"] < 1:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        world.error = None
        world.go.set()
        await world.until_rounds(1)
        assert world.supervisor.errors == {"tested": 1}
        assert world.deaths == []

    run(main)
    assert "OSError: no room" in caplog.text
    assert "Traceback" in caplog.text
    assert "works again, after 1 errors" in caplog.text


def test_an_error_that_comes_again_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """The next line says how many there were meanwhile."""

    async def main(world: World) -> None:
        for _ in range(3):
            world.supervisor.report_error("x", OSError("first minute"))
        world.clock.advance(61)
        world.supervisor.report_error("x", OSError("second minute"))
        world.supervisor.report_error("y", OSError("another"))

    run(main)
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "an error in 'x': OSError: first minute",
        "an error in 'x', 2 more since the last line about it: OSError: second minute",
        "an error in 'y': OSError: another",
    ]


@pytest.mark.parametrize("how", ["fails", "hangs"])
def test_a_loop_is_in_trouble_when_a_round_is_not_completed_in_time(how: str) -> None:
    """Whether it fails or hangs; not while there is nothing to do, and no longer once it works."""

    async def main(world: World) -> None:
        world.clock.advance(1000)
        assert world.supervisor.list_troubles() == []

        if how == "fails":
            world.error = OSError("no room")
        else:
            world.held.clear()
        world.go.set()
        await settle()
        world.clock.advance(9)
        assert world.supervisor.list_troubles() == []
        world.clock.advance(2)
        (trouble,) = world.supervisor.list_troubles()
        assert "'tested' has completed no round for 11 s" in trouble
        assert ("its last error: OSError: no room" in trouble) == (how == "fails")

        world.error = None
        world.held.set()
        world.go.set()
        await world.until_rounds(1)
        await settle()
        assert world.supervisor.list_troubles() == []

    run(main)


@pytest.mark.parametrize("how", ["cancelled", "fatal"])
def test_a_loop_that_ends_all_the_same_is_told(how: str) -> None:
    """With its name, once."""

    class Fatal(BaseException):
        pass

    async def main(world: World) -> None:
        await settle()
        if how == "cancelled":
            (task,) = (task for task in asyncio.all_tasks() if task.get_name() == "tested")
            task.cancel()
        else:
            world.error = Fatal("the interpreter is broken")
            world.go.set()
        await settle()
        (reason,) = world.deaths
        assert "the background loop 'tested' ended unexpectedly" in reason
        assert ("the interpreter is broken" in reason) == (how == "fatal")
        assert world.supervisor.list_troubles() == ["The background loop 'tested' is dead."]

    run(main)


def test_a_round_under_way_is_finished() -> None:
    """Stopping does not interrupt it, and tells of no death."""

    async def main(world: World) -> None:
        world.held.clear()
        world.go.set()
        await settle()
        stopping = asyncio.create_task(world.supervisor.loops["tested"].stop())
        await settle()
        assert not stopping.done()
        world.held.set()
        await stopping
        assert world.rounds == 1
        assert world.deaths == []
        assert world.supervisor.list_troubles() == []

    run(main)


def test_a_round_that_hangs_is_ended_at_last(caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise the server would never end."""

    async def main(world: World) -> None:
        world.held.clear()
        world.go.set()
        await settle()
        await world.supervisor.loops["tested"].stop(within=0.01)
        assert world.rounds == 0

    run(main)
    assert "'tested' hangs" in caplog.text


def test_a_task_that_fails_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    """It is counted by its kind, and logged with what it was about."""

    async def main(world: World) -> None:
        async def fail() -> None:
            raise OSError("no room")

        task = world.supervisor.start_task("node", fail(), title="node 7")
        await asyncio.wait((task,))
        await settle()
        assert world.supervisor.errors == {"tested": 0, "node": 1}
        assert not world.supervisor.tasks
        assert world.deaths == []

    run(main)
    assert "an error in 'node' (node 7): OSError: no room" in caplog.text


def test_what_callbacks_raise_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    """Of timers and of readers of descriptors: the event loop goes on, and so does the count."""

    async def main(world: World) -> None:
        def fail() -> None:
            raise OSError("no room")

        asyncio.get_running_loop().call_soon(fail)
        await settle()
        assert world.supervisor.errors["callback"] == 1

    run(main)
    assert "OSError: no room" in caplog.text
