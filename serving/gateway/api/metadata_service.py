"""Metadata calls over gRPC, with the same checks and observers as over HTTP.

Imported only where gRPC is switched on (setting `grpc_port`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from serving.errors import Internal, ServingError
from serving.gateway.api.protocol_metadata import (
    collect_statistics,
    find_versions,
    is_ready,
    iter_version_statuses,
    list_statuses,
)
from serving.gateway.api.request_io import Endpoint
from serving.gateway.catalog.lookup import resolve_address
from serving.gateway.control.schema_registry import SchemaRegistry
from serving.gateway.methods import METHODS, ApiMethod
from serving.gateway.observability.model_statistics import ModelStatistics
from serving.gateway.observability.prediction_stats import PredictionStats
from serving.gateway.request_context import request_id_header
from serving.gateway.state.records import CatalogState
from serving.model_schema import ModelSchema
from serving.names import ModelName
from serving.protocols import Reply, triton_extensions
from serving.protocols import inference_metadata as inference
from serving.protocols.addresses import ModelAddress, parse_address
from serving.protocols.errors import render_error
from serving.protocols.model_spec import parse_model_spec
from serving.protocols.tensorflow_metadata import VersionStatus
from serving.transport.grpc_server.call import GrpcCall
from serving.transport.grpc_server.metadata_service import answer_metadata_call

if TYPE_CHECKING:  # OpenTelemetry is imported only where it is switched on
    from serving.gateway.observability.tracing import Tracing

logger = logging.getLogger(__name__)

_ALL_STATISTICS = "inference.GRPCInferenceService.AllModelStatistics"
# The resource that stands for a model with an unreadable name: only callers that may see all models get the
# reason.
_NO_MODEL = "-"


class MetadataService:
    """Answers calls about models and the server.

    `around` wraps a method's endpoint in the checks of all its requests. `state` is the catalog's state,
    `ready` says whether the server is up; `schemas` has the schemas of versions, `statistics` their
    statistics. `project` is that of models which are not named in full; `name` is the server's name.
    """

    def __init__(
        self,
        state: Callable[[], CatalogState],
        ready: Callable[[], bool],
        schemas: SchemaRegistry,
        statistics: ModelStatistics,
        *,
        name: str,
        project: str,
        wrap_endpoint: Callable[[ApiMethod, Endpoint], Endpoint],
        stats: PredictionStats,
        tracing: Tracing | None,
    ) -> None:
        self._state = state
        self._ready = ready
        self._schemas = schemas
        self._statistics = statistics
        self._name = name
        self._project = project
        self._wrap_endpoint = wrap_endpoint
        self._stats = stats
        self._tracing = tracing

    async def __call__(self, call: GrpcCall) -> Reply:
        scope, method = call.scope, _select_method(call)
        trace = None if self._tracing is None else self._tracing.begin_trace(scope, method.id)
        try:
            scope["path_params"], endpoint = self._resolve_endpoint(method, call)
            response = await self._wrap_endpoint(method, endpoint)(Request(scope))
            reply = Reply(response.status_code, bytes(response.body))
        except ServingError as error:
            reply = render_error(error, call.rpc.dialect)
        except Exception:
            logger.exception("a call could not be answered")
            reply = render_error(Internal("Internal error encountered."), call.rpc.dialect)
        self._stats.api_calls[method.id, reply.status] += 1
        if trace is not None:
            trace.end(reply.status)
        return reply._replace(headers=(*reply.headers, request_id_header(scope)))

    def _resolve_endpoint(self, method: ApiMethod, call: GrpcCall) -> tuple[dict[str, str], Endpoint]:
        """Return the path parameters that the call stands for, and the endpoint that answers it."""
        about = _ModelInfo(
            self._state(), self._ready(), self._schemas, self._statistics, self._name, self._project
        )
        if not call.rpc.has_model_name or method.id == _ALL_STATISTICS:
            return {}, _make_endpoint(call, "", about)
        try:
            spec = call.head.read_model_spec()
            asked = parse_address(spec.model, self._project, version=spec.version, label=spec.label)
        except ServingError as problem:
            return {"project": self._project, "model": _NO_MODEL}, _make_error_endpoint(problem)
        named = {"project": asked.model.project, "model": asked.model.model}
        return named, _make_endpoint(call, spec.model, replace(about, asked=asked))


@dataclass(frozen=True, slots=True)
class _ModelInfo:
    """Information about the server, and about the model or version of an address."""

    records: CatalogState
    up: bool
    schemas: SchemaRegistry
    model_statistics: ModelStatistics
    server_name: str
    project: str
    asked: ModelAddress | None = None  # None: all of the project's models

    def is_up(self) -> bool:
        return self.up

    def server_metadata(self) -> Mapping[str, Any]:
        return inference.render_server(self.server_name, triton_extensions.EXTENSIONS)

    def is_ready(self) -> bool:
        return is_ready(self.records, self._address)

    def version_statuses(self) -> Sequence[VersionStatus]:
        return list_statuses(self.records, self._address)

    async def resolve_schema(self) -> tuple[str, ModelSchema]:
        record = resolve_address(self.records, self._address)
        return record.name.version, await self.schemas.get_schema(record)

    def list_statistics(self, model: str) -> Sequence[Mapping[str, Any]]:
        if self.asked is None:
            return collect_statistics(self.records, self.project, self.model_statistics)
        return triton_extensions.render_statistics(
            model, map(self.model_statistics.get_statistics, find_versions(self.records, self.asked))
        )

    def list_versions(self) -> Iterable[tuple[str, VersionStatus]]:
        return iter_version_statuses(self.records, self.project)

    @property
    def _address(self) -> ModelAddress:
        return self.asked or ModelAddress(ModelName("", ""))


def _select_method(call: GrpcCall) -> ApiMethod:
    """Statistics that name no model are those of all."""
    method = METHODS[f"{call.rpc.service}.{call.rpc.name}"]
    if call.rpc.name == "ModelStatistics":
        with contextlib.suppress(ServingError):  # its endpoint reports the error
            if not parse_model_spec(call.rpc.request, call.body).model:
                return METHODS[_ALL_STATISTICS]
    return method


def _make_endpoint(call: GrpcCall, model: str, info: _ModelInfo) -> Endpoint:
    async def endpoint(_: Request) -> Response:
        return Response(await answer_metadata_call(call.rpc, call.body, model, info))

    return endpoint


def _make_error_endpoint(problem: ServingError) -> Endpoint:
    async def endpoint(_: Request) -> Response:
        raise problem

    return endpoint
