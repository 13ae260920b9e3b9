"""Slots for child processes."""

from __future__ import annotations

import asyncio

import pytest

from serving.errors import ResourceExhausted
from serving.gateway.process_slots import ProcessSlots
from tests.bounds import HANG_SECONDS


def test_so_many_run_and_so_many_wait() -> None:
    """The others are told so at once. Who leaves while it waits takes no place any more."""

    async def main() -> None:
        slots, gate, running = ProcessSlots("listings", 2, queue=1), asyncio.Event(), 0

        async def work() -> None:
            nonlocal running
            async with slots.take():
                running += 1
                await gate.wait()

        async def settle() -> None:
            for _ in range(5):
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(work()) for _ in range(3)]
        await settle()
        assert running == 2
        with pytest.raises(ResourceExhausted, match="listings"):
            await work()
        tasks.pop().cancel()
        await settle()
        tasks.append(asyncio.create_task(work()))
        await settle()
        gate.set()
        async with asyncio.timeout(HANG_SECONDS):
            await asyncio.gather(*tasks)
            await work()
        assert running == 4

    asyncio.run(main())
