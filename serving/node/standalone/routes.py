"""The HTTP routes of a standalone node besides predictions: health and metadata in every protocol."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serving.errors import Internal, ServingError, Unavailable
from serving.model_schema import ModelSchema, for_ai_platform, schema_to_json
from serving.node.app import ServingNode
from serving.node.standalone.openapi import build_node_document
from serving.openapi import docs_page
from serving.protocols import inference_metadata as inference
from serving.protocols import tensorflow_metadata as tensorflow
from serving.protocols.errors import render_error
from serving.protocols.paths import detect_dialect, path_not_found_error, wrong_method_error
from serving.protocols.tensorflow_metadata import ServableState, VersionStatus

# The version in answers to requests that name none.
DEFAULT_VERSION = "1"

_NOT_READY = 503
_MODELS = ("/v2/models/{model}", "/v2/models/projects/{project}/models/{model}")


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
    _require_schema(request)
    return _json_response({"status": "ready"})


async def _get_stats(request: Request) -> Response:
    return _json_response(_current_node(request).collect_stats())


async def _get_schema(request: Request) -> Response:
    return _json_response(schema_to_json(_schema_with_bare_answers(request)))


async def _get_openapi(request: Request) -> Response:
    node = _current_node(request)
    return _json_response(
        build_node_document(
            _schema_with_bare_answers(request) if _is_ready(request) else None,
            legacy_model_errors=node.legacy_model_errors,
        )
    )


async def _get_docs(_: Request) -> Response:
    return Response(docs_page.read_page(), headers=dict(docs_page.page_headers()))


# ---- TensorFlow Serving's


async def _get_model_status(request: Request) -> Response:
    return _json_response(tensorflow.render_status([_version_status(request)]))


async def _get_model_signatures(request: Request) -> Response:
    return _json_response(
        tensorflow.render_metadata(
            _requested_model(request), _version_status(request).version, _require_schema(request)
        )
    )


# ---- the Open Inference Protocol's


async def _get_server_metadata(_: Request) -> Response:
    return _json_response(inference.render_server())


async def _get_server_live(_: Request) -> Response:
    return _json_response(inference.render_live())


async def _get_server_ready(request: Request) -> Response:
    is_ready = _is_ready(request)
    return _json_response(inference.render_ready(is_ready), 200 if is_ready else _NOT_READY)


async def _get_model_ready(request: Request) -> Response:
    is_ready = _is_ready(request)
    return _json_response(
        inference.render_model_ready(_requested_model(request), is_ready), 200 if is_ready else _NOT_READY
    )


async def _get_model_metadata(request: Request) -> Response:
    return _json_response(
        inference.render_metadata(
            _requested_model(request), [_version_status(request)], _require_schema(request)
        )
    )


_ROUTES = (
    Route("/healthz", _get_liveness),
    Route("/readyz", _get_readiness),
    Route("/stats", _get_stats),
    Route("/openapi.json", _get_openapi),
    Route("/docs", _get_docs),
    Route("/v1/projects/{project}/models/{model}/versions/{version}:schema", _get_schema),
    Route("/v1/projects/{project}/models/{model}:schema", _get_schema),
    *(
        Route(f"/v1/models/{{model}}{version}{suffix}", endpoint)
        for version in ("", "/versions/{version}", "/labels/{label}")
        for suffix, endpoint in (("", _get_model_status), ("/metadata", _get_model_signatures))
    ),
    Route("/v2", _get_server_metadata),
    Route("/v2/health/live", _get_server_live),
    Route("/v2/health/ready", _get_server_ready),
    *(
        Route(f"{model}{version}{suffix}", endpoint)
        for model in _MODELS
        for version in ("", "/versions/{version}")
        for suffix, endpoint in (("", _get_model_metadata), ("/ready", _get_model_ready))
    ),
)


# ---- shared by the routes


def _current_node(request: Request) -> ServingNode:
    node: ServingNode = request.app.state.node
    return node


def _is_ready(request: Request) -> bool:
    return _current_node(request).predictor is not None


def _require_schema(request: Request) -> ModelSchema:
    """The model's schema. Raises Unavailable while it is being loaded."""
    node = _current_node(request)
    if node.predictor is None or node.schema is None:
        raise model_loading_error()
    return node.schema


def _schema_with_bare_answers(request: Request) -> ModelSchema:
    """The schema with bare answers where the setting says so."""
    return for_ai_platform(_require_schema(request), bare=_current_node(request).has_bare_answers)


def _requested_model(request: Request) -> str:
    """The model's name in the request; any name will do."""
    model: str = request.path_params["model"]
    return model


def _version_status(request: Request) -> VersionStatus:
    """The version's state, under the version in the request."""
    state = ServableState.AVAILABLE if _is_ready(request) else ServableState.LOADING
    return VersionStatus(request.path_params.get("version", DEFAULT_VERSION), state)


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
