"""Calls that a server makes to itself before it is ready, so that the first client does not wait for what
comes first."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

from grpc import aio

from serving.grpc.methods import RPCS
from serving.grpc.server import GrpcServer
from serving.protocols import Call

_METHODS = {(rpc.dialect, rpc.verb): rpc.path for rpc in RPCS.values()}


async def practise(server: GrpcServer, asked: Iterable[tuple[Call, bytes]], seconds: float) -> None:
    """Start a server that is there for this alone, ask it for at most so many seconds, and stop it."""
    address = server.bind("127.0.0.1", 0)
    await server.start()
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), aio.insecure_channel(address) as channel:
                for call, body in asked:
                    with contextlib.suppress(aio.AioRpcError):  # it is only practice
                        await channel.unary_unary(_METHODS[call.dialect, call.verb])(body)
    finally:
        await server.stop(0)
