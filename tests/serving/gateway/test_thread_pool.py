"""Pools of threads for blocking work."""

from __future__ import annotations

import asyncio
import threading

import pytest

from serving.errors import ResourceExhausted
from serving.gateway.thread_pool import ThreadPool
from tests.bounds import HANG_SECONDS


@pytest.fixture
def gate() -> threading.Event:
    """What blocks the work of a test."""
    return threading.Event()


def test_a_busy_pool_delays_no_other(gate: threading.Event) -> None:
    """However much waits in it."""

    async def scenario() -> None:
        busy, other = ThreadPool("busy", 2), ThreadPool("other", 1)
        blocked = [asyncio.create_task(busy.run(gate.wait)) for _ in range(50)]
        try:
            async with asyncio.timeout(HANG_SECONDS):
                assert await other.run(int, "7") == 7
            assert not any(task.done() for task in blocked)
        finally:
            gate.set()
        assert all(await asyncio.gather(*blocked))

    asyncio.run(scenario())


def test_so_many_wait_and_no_more(gate: threading.Event) -> None:
    """The others are told so at once. A call has its place until it ends, also when its caller has left."""

    async def scenario() -> None:
        pool = ThreadPool("some", 1, queue=2)
        calls = [asyncio.create_task(pool.run(gate.wait)) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(ResourceExhausted, match="some"):
            await pool.run(gate.wait)
        calls[0].cancel()
        await asyncio.wait(calls[:1])
        with pytest.raises(ResourceExhausted):
            await pool.run(gate.wait)
        gate.set()

        assert await asyncio.gather(*calls[1:]) == [True, True]
        assert await pool.run(int, "7") == 7

    asyncio.run(scenario())


def test_what_is_cancelled_while_it_waits_is_not_done(gate: threading.Event) -> None:
    """And leaves its place."""

    async def scenario() -> None:
        pool, done = ThreadPool("one", 1, queue=1), threading.Event()
        first = asyncio.create_task(pool.run(gate.wait))
        second = asyncio.create_task(pool.run(done.set))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait((second,))
        third = asyncio.create_task(pool.run(int, "7"))
        await asyncio.sleep(0)
        gate.set()

        assert (await first, await third) == (True, 7)
        assert not done.is_set()

    asyncio.run(scenario())


def test_errors_are_the_callers() -> None:
    """As if it had called itself."""

    async def scenario() -> None:
        with pytest.raises(ValueError, match="x"):
            await ThreadPool("one", 1).run(int, "x")

    asyncio.run(scenario())
