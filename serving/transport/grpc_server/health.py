"""`grpc.health.v1`: whether the server takes calls, for all of its services and for each.

The implementation in grpcio-health-checking forgets all watchers of a service once one of them leaves, so
this is one of our own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from serving.errors import InvalidArgument, NotFound, Unavailable
from serving.transport.grpc_server.call import MessageReader, with_error_replies

HEALTH_SERVICE = "grpc.health.v1.Health"
_RESPONSE = health_pb2.HealthCheckResponse
# Letters of an unknown name in an error: clients take no long messages.
_MAX_NAME_SHOWN = 100


class HealthService:
    """The status of a server, which is that of all its `services`; `read` reads the messages of calls."""

    def __init__(self, services: Sequence[str], read: MessageReader) -> None:
        self._services = {"", *services}
        self._read = read
        self._changed = asyncio.Event()
        self._serving = self._stopped = False

    def set_serving(self) -> None:
        """Calls are taken from now on; notifies watchers."""
        self._serving = True
        self._notify_watchers()

    def set_stopped(self) -> None:
        """Calls are taken no longer; notifies watchers, and ends their streams."""
        self._serving, self._stopped = False, True
        self._notify_watchers()

    def build_handler(self) -> Any:
        methods = {
            "Check": grpc.stream_unary_rpc_method_handler(with_error_replies(self._answer_check)),
            "Watch": grpc.stream_stream_rpc_method_handler(with_error_replies(self._answer_watch)),
        }
        return grpc.method_handlers_generic_handler(HEALTH_SERVICE, methods)

    async def _answer_check(self, context: Any) -> bytes:
        service = await self._read_service(context)
        if service not in self._services:
            known = ", ".join(sorted(self._services - {""}))
            raise NotFound(f"There is no service {service[:_MAX_NAME_SHOWN]!r}. There are: {known}.")
        return self._encode_status(service)

    async def _answer_watch(self, context: Any) -> None:
        service, last_sent = await self._read_service(context), b""
        while True:
            changed, status = self._changed, self._encode_status(service)
            if status != last_sent:
                await context.write(status)
                last_sent = status
            if self._stopped:
                raise Unavailable("The server is stopping.", retry_after=1)
            await changed.wait()

    async def _read_service(self, context: Any) -> str:
        try:
            request = health_pb2.HealthCheckRequest.FromString(await self._read(context) or b"")
        except DecodeError as error:
            raise InvalidArgument(f"The message cannot be read as a HealthCheckRequest: {error}.") from error
        service: str = request.service
        return service

    def _encode_status(self, service: str) -> bytes:
        if service not in self._services:
            status = _RESPONSE.SERVICE_UNKNOWN
        else:
            status = _RESPONSE.SERVING if self._serving else _RESPONSE.NOT_SERVING
        message: bytes = _RESPONSE(status=status).SerializeToString()
        return message

    def _notify_watchers(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
