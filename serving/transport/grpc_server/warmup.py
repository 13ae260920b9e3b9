"""Calls that a server makes to itself before it is ready, so that the first client's call is not slow."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

from grpc import aio

from serving.protocols import RequestMetadata
from serving.transport.grpc_server.rpc_methods import RPC_METHODS
from serving.transport.grpc_server.server import GrpcServer

_PATHS_BY_VERB = {(rpc.dialect, rpc.verb): rpc.path for rpc in RPC_METHODS.values()}


async def warm_up_server(
    server: GrpcServer, samples: Iterable[tuple[RequestMetadata, bytes]], seconds: float
) -> None:
    """Start a server for this alone, call it for at most so many seconds, and stop it."""
    address = server.bind("127.0.0.1", 0)
    await server.start()
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), aio.insecure_channel(address) as channel:
                for call, body in samples:
                    with contextlib.suppress(aio.AioRpcError):  # it is only a warm-up
                        await channel.unary_unary(_PATHS_BY_VERB[call.dialect, call.verb])(body)
    finally:
        await server.stop(0)
