"""Metadata calls over gRPC, with the same checks and observers as over HTTP.

Imported only where gRPC is switched on (setting `grpc_port`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from serving.errors import Internal, ServingError
from serving.gateway.api.protocol_metadata import CatalogModelInfo
from serving.gateway.api.request_io import Endpoint
from serving.gateway.methods import METHODS, ApiMethod
from serving.gateway.observability.prediction_stats import PredictionStats
from serving.gateway.request_context import request_id_header
from serving.protocols import Reply
from serving.protocols.addresses import parse_address
from serving.protocols.errors import render_error
from serving.protocols.model_spec import extract_model_spec
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

    `describe` gives the information about the server and its models now. `wrap_endpoint` wraps a
    method's endpoint in the checks of all its requests.
    """

    def __init__(
        self,
        describe: Callable[[], CatalogModelInfo],
        *,
        wrap_endpoint: Callable[[ApiMethod, Endpoint], Endpoint],
        stats: PredictionStats,
        tracing: Tracing | None,
    ) -> None:
        self._describe = describe
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
        info = self._describe()
        if not call.rpc.has_model_name or method.id == _ALL_STATISTICS:
            return {}, _make_endpoint(call, "", info)
        try:
            spec = call.head.read_model_spec()
            asked = parse_address(spec.model, info.project, version=spec.version, label=spec.label)
        except ServingError as problem:
            return {"project": info.project, "model": _NO_MODEL}, _make_error_endpoint(problem)
        named = {"project": asked.model.project, "model": asked.model.model}
        return named, _make_endpoint(call, spec.model, replace(info, asked=asked))


def _select_method(call: GrpcCall) -> ApiMethod:
    """Statistics that name no model are those of all."""
    method = METHODS[f"{call.rpc.service}.{call.rpc.name}"]
    if call.rpc.name == "ModelStatistics":
        with contextlib.suppress(ServingError):  # its endpoint reports the error
            if not extract_model_spec(call.rpc.request, call.body).model:
                return METHODS[_ALL_STATISTICS]
    return method


def _make_endpoint(call: GrpcCall, model: str, info: CatalogModelInfo) -> Endpoint:
    async def endpoint(_: Request) -> Response:
        return Response(await answer_metadata_call(call.rpc, call.body, model, info))

    return endpoint


def _make_error_endpoint(problem: ServingError) -> Endpoint:
    async def endpoint(_: Request) -> Response:
        raise problem

    return endpoint
