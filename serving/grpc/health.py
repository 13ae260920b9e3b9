"""`grpc.health.v1`: whether the server takes calls, for all of its services and for each.

The implementation that comes with grpcio-health-checking forgets all who watch a service once one of them
leaves, so this is one of our own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

SERVICE = "grpc.health.v1.Health"
_STATUS = health_pb2.HealthCheckResponse
# Letters of a name that are repeated to who made it up: clients take no long messages.
_SHOWN = 100


class Health:
    """The state of a server, which is that of all its `services`."""

    def __init__(self, services: Sequence[str]) -> None:
        self._services = {"", *services}
        self._changed = asyncio.Event()
        self.serving = False

    def set(self, *, serving: bool) -> None:
        """Whether calls are taken from now on; who watches is told."""
        self.serving = serving
        self._changed.set()
        self._changed = asyncio.Event()

    def handler(self) -> Any:
        """The service, for a server."""
        methods = {
            "Check": grpc.unary_unary_rpc_method_handler(
                self._check, health_pb2.HealthCheckRequest.FromString, _STATUS.SerializeToString
            ),
            "Watch": grpc.unary_stream_rpc_method_handler(
                self._watch, health_pb2.HealthCheckRequest.FromString, _STATUS.SerializeToString
            ),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def _check(self, request: Any, context: Any) -> Any:
        if request.service not in self._services:
            known = ", ".join(sorted(self._services - {""}))
            await context.abort(
                grpc.StatusCode.NOT_FOUND,
                f"There is no service {request.service[:_SHOWN]!r}. There are: {known}.",
            )
        return self._status(request.service)

    async def _watch(self, request: Any, _: Any) -> AsyncIterator[Any]:
        told = None
        while True:
            changed, status = self._changed, self._status(request.service)
            if status != told:
                yield status
                told = status
            await changed.wait()

    def _status(self, service: str) -> Any:
        if service not in self._services:
            return _STATUS(status=_STATUS.SERVICE_UNKNOWN)
        return _STATUS(status=_STATUS.SERVING if self.serving else _STATUS.NOT_SERVING)
