"""Who starts when, of nodes that are wanted all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from autoscaler.pools import start_slots
from autoscaler.pools.start_slots import StartSlot, StartSlots
from tests.bounds import HANG_SECONDS


class World:
    """Nodes that want to start, by name, and the slots of those that may."""

    def __init__(self, count: int) -> None:
        self.slots = StartSlots(count)
        self.started: dict[str, StartSlot] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def want(self, *names: str, first: bool = True) -> None:
        for name in names:
            self.tasks[name] = asyncio.create_task(self._start(name, first=first))
        await self.settle()

    async def _start(self, name: str, *, first: bool) -> None:
        self.started[name] = await self.slots.take(first=first)

    async def settle(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)


def run(main: Callable[[World], Awaitable[None]], count: int = 2) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(HANG_SECONDS):
            await main(World(count))

    asyncio.run(bounded())


def test_no_more_start_than_there_are_slots() -> None:
    """The next one starts when one of them has, and each slot is handed on once."""

    async def main(world: World) -> None:
        await world.want("a", "b", "c", "d")
        assert list(world.started) == ["a", "b"]
        world.started["a"].release()
        world.started["a"].release()
        await world.settle()
        assert list(world.started) == ["a", "b", "c"]
        for name in "bc":
            world.started[name].release()
        await world.settle()
        world.started["d"].release()
        await world.want("e", "f", "g")
        assert list(world.started) == ["a", "b", "c", "d", "e", "f"]

    run(main)


def test_first_nodes_go_first() -> None:
    """A version that has none matters more than one that wants another; then who waits longest."""

    async def main(world: World) -> None:
        await world.want("a")
        await world.want("b", "c", first=False)
        await world.want("d", "e")
        for name in "adeb":
            world.started[name].release()
            await world.settle()
        assert list(world.started) == ["a", "d", "e", "b", "c"]

    run(main, count=1)


@pytest.mark.parametrize("granted", [False, True])
def test_who_is_stopped_while_it_waits_takes_no_slot(granted: bool) -> None:
    """Not even if its turn has just come."""

    async def main(world: World) -> None:
        await world.want("a", "b", "c")
        if granted:
            world.started["a"].release()
        world.tasks["b"].cancel()
        await world.settle()
        world.started["a"].release()
        await world.settle()
        assert list(world.started) == ["a", "c"]

    run(main, count=1)


def test_a_node_that_is_stuck_keeps_nobody_waiting_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on starting, and the next one begins."""
    monkeypatch.setattr(start_slots, "_HELD_AT_MOST", 0.01)

    async def main(world: World) -> None:
        await world.want("a", "b")
        await asyncio.wait_for(world.tasks["b"], 5)
        assert list(world.started) == ["a", "b"]

    run(main, count=1)
