"""Fixtures of the tests of transports."""

from __future__ import annotations

import asyncio

import pytest


@pytest.fixture(scope="session", autouse=True)
def keep_grpc_asyncio_alive() -> None:
    """Keep the completion queue that all servers and channels of gRPC's asyncio API share.

    It is shut down when the last of them is freed, here at the end of a test. That waits without a bound for
    the queue's thread, which now and then never ends. One reference that is never given back prevents it.
    """
    from grpc import aio

    async def add_reference() -> None:
        aio.init_grpc_aio()

    asyncio.run(add_reference())
