"""Questions over gRPC, answered as those over HTTP are: with the same checks, and to the same witnesses.

Imported only where gRPC is switched on (setting `grpc_port`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from serving.errors import Internal, ServingError
from serving.gateway.api.requests import Endpoint
from serving.gateway.catalog.lookup import resolve_address
from serving.gateway.identity import as_header
from serving.gateway.methods import METHODS, Method
from serving.gateway.records import State
from serving.gateway.schemas import Schemas
from serving.gateway.standings import is_ready, standings
from serving.gateway.tallies import Tallies
from serving.grpc.answers import answer
from serving.grpc.call import GrpcCall
from serving.names import ModelName
from serving.protocols import Reply
from serving.protocols.addresses import Address, address
from serving.protocols.errors import refusal
from serving.protocols.tensorflow_status import Standing
from serving.schema import Schema

if TYPE_CHECKING:  # OpenTelemetry is imported only where it is switched on
    from serving.gateway.tracing import Tracing

logger = logging.getLogger(__name__)

# What access is checked on for a model whose name cannot be read: only who may ask of all is told why.
_NO_MODEL = "-"


class Questions:
    """Answers what is asked about models and the server.

    `around` puts what all requests of a method go through around its endpoint. `state` is what the server
    remembers, `ready` whether it is up; `schemas` knows what versions take, and `project` is that of models
    which are not named in full.
    """

    def __init__(
        self,
        state: Callable[[], State],
        ready: Callable[[], bool],
        schemas: Schemas,
        *,
        project: str,
        around: Callable[[Method, Endpoint], Endpoint],
        tallies: Tallies,
        tracing: Tracing | None,
    ) -> None:
        self._state = state
        self._ready = ready
        self._schemas = schemas
        self._project = project
        self._around = around
        self._tallies = tallies
        self._tracing = tracing

    async def __call__(self, call: GrpcCall) -> Reply:
        """The answer to one."""
        scope, method = call.scope, METHODS[f"{call.rpc.service}.{call.rpc.name}"]
        trace = None if self._tracing is None else self._tracing.begin(scope, method.id)
        try:
            scope["path_params"], endpoint = self._endpoint(method, call)
            response = await self._around(method, endpoint)(Request(scope))
            reply = Reply(response.status_code, bytes(response.body))
        except ServingError as error:
            reply = refusal(error, call.rpc.dialect)
        except Exception:
            logger.exception("a call could not be answered")
            reply = refusal(Internal("Internal error encountered."), call.rpc.dialect)
        self._tallies.calls[method.id, reply.status] += 1
        if trace is not None:
            trace.end(reply.status)
        return reply._replace(headers=(*reply.headers, as_header(scope)))

    def _endpoint(self, method: Method, call: GrpcCall) -> tuple[dict[str, str], Endpoint]:
        """What the call names, as a path would have it, and what answers it."""
        if not call.rpc.about_model:
            return {}, _answering(call, "", _About(self._state(), self._ready(), self._schemas))
        try:
            spec = call.head.spec()
            asked = address(spec.model, self._project, version=spec.version, label=spec.label)
        except ServingError as problem:
            return {"project": self._project, "model": _NO_MODEL}, _raising(problem)
        about = _About(self._state(), self._ready(), self._schemas, asked)
        named = {"project": asked.model.project, "model": asked.model.model}
        return named, _answering(call, spec.model, about)


@dataclass(frozen=True, slots=True)
class _About:
    """What is known of the server, and of what an address is of."""

    records: State
    up: bool
    schemas: Schemas
    asked: Address = Address(ModelName("", ""))

    def is_up(self) -> bool:
        return self.up

    def is_ready(self) -> bool:
        return is_ready(self.records, self.asked)

    def standings(self) -> Sequence[Standing]:
        return standings(self.records, self.asked)

    async def described(self) -> tuple[str, Schema]:
        record = resolve_address(self.records, self.asked)
        return record.name.version, await self.schemas.of(record)


def _answering(call: GrpcCall, model: str, about: _About) -> Endpoint:
    async def endpoint(_: Request) -> Response:
        return Response(await answer(call.rpc, call.body, model, about))

    return endpoint


def _raising(problem: ServingError) -> Endpoint:
    async def endpoint(_: Request) -> Response:
        raise problem

    return endpoint
