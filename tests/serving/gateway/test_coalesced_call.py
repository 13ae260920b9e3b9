"""Calls that several wait for; `catalog/test_shared_catalog.py` tells which of them share one."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from serving.gateway.coalesced_call import CoalescedCall


def test_a_call_goes_on_without_those_who_wait_and_fails_in_silence() -> None:
    lock, is_failing, ended = asyncio.Lock(), asyncio.Event(), asyncio.Event()
    reported: list[dict[str, Any]] = []

    async def work() -> None:
        try:
            await is_failing.wait()
            raise ValueError("broken")
        finally:
            ended.set()

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        call = CoalescedCall(work, lambda: lock)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await call.run()
        is_failing.set()
        await ended.wait()
        with pytest.raises(ValueError, match="broken"):
            await call.run()
        gc.collect()
        assert reported == []

    asyncio.run(main())
