"""The HTTP routes of a standalone node besides predictions: health and metadata in every protocol."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serving.errors import Internal, ServingError, Unavailable
from serving.model_schema import ModelSchema, schema_to_json, with_bare_answers
from serving.node.app import ServingNode
from serving.node.standalone.openapi import METADATA_PATHS, build_node_document
from serving.openapi import docs_page
from serving.protocols import inference_metadata as inference
from serving.protocols import triton_extensions
from serving.protocols.errors import render_error
from serving.protocols.metadata_calls import answer_http_call
from serving.protocols.paths import detect_dialect, path_not_found_error, wrong_method_error
from serving.protocols.tensorflow_metadata import ServableState, VersionStatus

# The version in answers to requests that name none.
DEFAULT_VERSION = "1"


def create_app(node: ServingNode, health_route: str = "") -> Starlette:
    """The routes that are not predictions; the node lives from its start-up to its shutdown.

    `health_route` is one more path that answers 200 once the node is ready; "" for none.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        node.start()
        yield
        node.stop()

    health = (Route(health_route, _get_readiness),) if health_route else ()
    app = Starlette(
        routes=(*health, *_ROUTES),
        exception_handlers={
            ServingError: _handle_serving_error,
            404: _handle_not_found,
            405: _handle_wrong_method,
        },
        lifespan=lifespan,
    )
    app.state.node = node
    return app


def model_loading_error() -> Unavailable:
    return Unavailable("The model is being loaded.", retry_after=1)


def unknown_path_error(method: str, path: str) -> ServingError:
    return path_not_found_error(
        method,
        path,
        "A node answers POST /v1/projects/PROJECT/models/MODEL[/versions/VERSION]"
        ":predict, POST /v1/models/MODEL[/versions/VERSION]:predict, :classify and :regress, "
        "POST /v2/models/MODEL[/versions/VERSION]/infer, GET /healthz, /readyz, /stats, /openapi.json "
        "and /docs; see docs/protocols.md.",
    )


# ---- Pilotlight's own


async def _get_liveness(_: Request) -> Response:
    return _json_response({"status": "live"})


async def _get_readiness(request: Request) -> Response:
    _require_schema(_current_node(request))
    return _json_response({"status": "ready"})


async def _get_stats(request: Request) -> Response:
    return _json_response(_current_node(request).collect_stats())


async def _get_schema(request: Request) -> Response:
    return _json_response(schema_to_json(_schema_with_bare_answers(_current_node(request))))


async def _get_openapi(request: Request) -> Response:
    node = _current_node(request)
    return _json_response(
        build_node_document(
            _schema_with_bare_answers(node) if node.predictor is not None else None,
            legacy_model_errors=node.legacy_model_errors,
        )
    )


async def _get_docs(_: Request) -> Response:
    return Response(docs_page.read_page(), headers=dict(docs_page.page_headers()))


# ---- metadata in all protocols


@dataclass(frozen=True, slots=True)
class NodeModelInfo:
    """Information about the node's one model, as the version that a client calls it."""

    node: ServingNode
    version: str = DEFAULT_VERSION

    def is_serving(self) -> bool:
        return self.node.predictor is not None

    is_model_ready = is_serving

    def server_metadata(self) -> Mapping[str, Any]:
        return inference.render_server()

    def list_statistics(self, model: str) -> Sequence[Mapping[str, Any]]:
        raise triton_extensions.standalone_unsupported_error()

    def list_all_versions(self) -> Iterable[tuple[str, VersionStatus]]:
        raise triton_extensions.standalone_unsupported_error()

    def version_statuses(self) -> Sequence[VersionStatus]:
        state = ServableState.AVAILABLE if self.is_serving() else ServableState.LOADING
        return [VersionStatus(self.version, state)]

    async def resolve_schema(self) -> tuple[str, ModelSchema]:
        return self.version, _require_schema(self.node)


async def _answer_metadata_call(method: str, request: Request) -> Response:
    path = request.path_params
    info = NodeModelInfo(_current_node(request), path.get("version", DEFAULT_VERSION))
    status, found = await answer_http_call(method, path.get("model", ""), info)
    return _json_response(found, status)


_ROUTES = (
    Route("/healthz", _get_liveness),
    Route("/readyz", _get_readiness),
    Route("/stats", _get_stats),
    Route("/openapi.json", _get_openapi),
    Route("/docs", _get_docs),
    Route("/v1/projects/{project}/models/{model}/versions/{version}:schema", _get_schema),
    Route("/v1/projects/{project}/models/{model}:schema", _get_schema),
    *(
        Route(path, functools.partial(_answer_metadata_call, method), methods=["GET"])
        for path, method in METADATA_PATHS
    ),
)


# ---- shared by the routes


def _current_node(request: Request) -> ServingNode:
    node: ServingNode = request.app.state.node
    return node


def _require_schema(node: ServingNode) -> ModelSchema:
    """The model's schema. Raises Unavailable while it is being loaded."""
    if node.predictor is None or node.schema is None:
        raise model_loading_error()
    return node.schema


def _schema_with_bare_answers(node: ServingNode) -> ModelSchema:
    """The schema with bare answers where the setting says so."""
    return with_bare_answers(_require_schema(node), bare=node.has_bare_answers)


def _json_response(body: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(body), status, media_type="application/json")


async def _handle_not_found(request: Request, _: Exception) -> Response:
    return _error_response(request, unknown_path_error(request.method, request.scope["path"]))


async def _handle_wrong_method(request: Request, _: Exception) -> Response:
    return _error_response(request, wrong_method_error(request.method, request.scope["path"], "GET"))


async def _handle_serving_error(request: Request, error: Exception) -> Response:
    return _error_response(request, error if isinstance(error, ServingError) else Internal(str(error)))


def _error_response(request: Request, error: ServingError) -> Response:
    status, body, headers = render_error(error, detect_dialect(request.scope["path"]))
    text_headers = {name.decode(): value.decode() for name, value in headers}
    return Response(body, status, {"content-type": "application/json", **text_headers})
