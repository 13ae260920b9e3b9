"""Reflection: lists the services of a server and their messages for grpcurl and similar tools.

Version 1 and the alpha version before it differ in their name only; newer tools ask for the first, older
ones for the second.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection import aio

from serving.errors import InvalidArgument, Unavailable
from serving.protocols.protos import load_descriptor_pool
from serving.transport.grpc_server.call import MessageReader, with_error_replies

REFLECTION_SERVICES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
# Bytes of a request: it names a file or a symbol, and its response repeats it.
_MAX_REQUEST_BYTES = 4096


class ReflectionService:
    """Describes the `services` of a server; `read` reads the messages of calls."""

    def __init__(self, services: Sequence[str], read: MessageReader) -> None:
        found = load_descriptor_pool()
        for file in (health_pb2, reflection_pb2):
            found.AddSerializedFile(file.DESCRIPTOR.serialized_pb)
        self._servicer = aio.ReflectionServicer((*services, REFLECTION_SERVICES[1]), found)
        self._read = read
        self._streams: set[asyncio.Task[Any]] = set()
        self._stopped = False

    def build_handlers(self) -> list[Any]:
        method = grpc.stream_stream_rpc_method_handler(with_error_replies(self._answer_stream))
        return [
            grpc.method_handlers_generic_handler(service, {"ServerReflectionInfo": method})
            for service in REFLECTION_SERVICES
        ]

    def end_streams(self) -> None:
        """End all streams: nobody knows whether another request will come."""
        self._stopped = True
        for stream in self._streams:
            stream.cancel()

    async def _answer_stream(self, context: Any) -> None:
        stream = cast(asyncio.Task[Any], asyncio.current_task())
        self._streams.add(stream)
        try:
            async for answer in self._servicer.ServerReflectionInfo(self._read_requests(context), context):
                await context.write(answer.SerializeToString())
        except asyncio.CancelledError:
            if self._stopped:
                raise Unavailable("The server is stopping.", retry_after=1) from None
            raise
        finally:
            self._streams.discard(stream)

    async def _read_requests(self, context: Any) -> AsyncIterator[Any]:
        while (message := await self._read(context)) is not None:
            if len(message) > _MAX_REQUEST_BYTES:
                raise InvalidArgument(
                    f"The question has {len(message)} bytes; it can have {_MAX_REQUEST_BYTES}."
                )
            try:
                yield reflection_pb2.ServerReflectionRequest.FromString(message)
            except DecodeError as error:
                raise InvalidArgument(
                    f"The message cannot be read as a ServerReflectionRequest: {error}."
                ) from error
