"""What a node alone answers over HTTP besides predictions: health, and what it serves, in every protocol."""

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
from serving.node.app import Node
from serving.node.openapi import of_node
from serving.openapi import page
from serving.protocols import inference_metadata as inference
from serving.protocols import tensorflow_status as tensorflow
from serving.protocols.errors import refusal
from serving.protocols.paths import dialect_of, no_such_method, no_such_path
from serving.protocols.tensorflow_status import Standing, State
from serving.schema import ModelSchema, for_ai_platform, schema_to_json

# What the version is called where nobody names one: a node knows no other name for what it serves.
VERSION = "1"

_NOT_READY = 503
_MODELS = ("/v2/models/{model}", "/v2/models/projects/{project}/models/{model}")


def application(node: Node, health_route: str = "") -> Starlette:
    """The routes that are not predictions; the node lives from its start-up to its shutdown.

    `health_route` is one more path that answers 200 once the node is ready; "" for none.
    """

    @contextlib.asynccontextmanager
    async def living(_: Starlette) -> AsyncGenerator[None]:
        node.start()
        yield
        node.end()

    health = (Route(health_route, _ready),) if health_route else ()
    app = Starlette(
        routes=(*health, *_ROUTES),
        exception_handlers={ServingError: _refused, 404: _not_found, 405: _wrong_method},
        lifespan=living,
    )
    app.state.node = node
    return app


def loading() -> Unavailable:
    """The error while the model is not there yet."""
    return Unavailable("The model is being loaded.", retry_after=1)


def nothing_there(method: str, path: str) -> ServingError:
    """The error for a path that is none."""
    return no_such_path(
        method,
        path,
        "A node answers POST /v1/projects/PROJECT/models/MODEL[/versions/VERSION]"
        ":predict, POST /v1/models/MODEL[/versions/VERSION]:predict, :classify and :regress, "
        "POST /v2/models/MODEL[/versions/VERSION]/infer, GET /healthz, /readyz, /stats, /openapi.json "
        "and /docs; see docs/protocols.md.",
    )


# ---- our own


async def _live(_: Request) -> Response:
    return _json({"status": "live"})


async def _ready(request: Request) -> Response:
    _loaded(request)
    return _json({"status": "ready"})


async def _stats(request: Request) -> Response:
    return _json(_node(request).stats())


async def _schema(request: Request) -> Response:
    return _json(schema_to_json(_answered(request)))


async def _openapi(request: Request) -> Response:
    node = _node(request)
    return _json(of_node(_answered(request) if _is_ready(request) else None, old_errors=node.old_errors))


async def _docs(_: Request) -> Response:
    return Response(page.html(), headers=dict(page.headers()))


# ---- TensorFlow Serving's


async def _model_status(request: Request) -> Response:
    return _json(tensorflow.status([_standing(request)]))


async def _signatures(request: Request) -> Response:
    return _json(tensorflow.metadata(_model(request), _standing(request).version, _loaded(request)))


# ---- the Open Inference Protocol's


async def _server(_: Request) -> Response:
    return _json(inference.server())


async def _server_live(_: Request) -> Response:
    return _json(inference.live())


async def _server_ready(request: Request) -> Response:
    is_ready = _is_ready(request)
    return _json(inference.ready(is_ready), 200 if is_ready else _NOT_READY)


async def _model_ready(request: Request) -> Response:
    is_ready = _is_ready(request)
    return _json(inference.model_ready(_model(request), is_ready), 200 if is_ready else _NOT_READY)


async def _model_metadata(request: Request) -> Response:
    return _json(inference.metadata(_model(request), [_standing(request)], _loaded(request)))


_ROUTES = (
    Route("/healthz", _live),
    Route("/readyz", _ready),
    Route("/stats", _stats),
    Route("/openapi.json", _openapi),
    Route("/docs", _docs),
    Route("/v1/projects/{project}/models/{model}/versions/{version}:schema", _schema),
    Route("/v1/projects/{project}/models/{model}:schema", _schema),
    *(
        Route(f"/v1/models/{{model}}{version}{suffix}", endpoint)
        for version in ("", "/versions/{version}", "/labels/{label}")
        for suffix, endpoint in (("", _model_status), ("/metadata", _signatures))
    ),
    Route("/v2", _server),
    Route("/v2/health/live", _server_live),
    Route("/v2/health/ready", _server_ready),
    *(
        Route(f"{model}{version}{suffix}", endpoint)
        for model in _MODELS
        for version in ("", "/versions/{version}")
        for suffix, endpoint in (("", _model_metadata), ("/ready", _model_ready))
    ),
)


# ---- what they stand on


def _node(request: Request) -> Node:
    node: Node = request.app.state.node
    return node


def _is_ready(request: Request) -> bool:
    return _node(request).predictor is not None


def _loaded(request: Request) -> ModelSchema:
    """What the model takes and answers. Raises Unavailable while it is being loaded."""
    node = _node(request)
    if node.predictor is None or node.schema is None:
        raise loading()
    return node.schema


def _answered(request: Request) -> ModelSchema:
    """The same as AI Platform's clients see it."""
    return for_ai_platform(_loaded(request), bare=_node(request).answers_bare)


def _model(request: Request) -> str:
    """What the client calls the model: all names are those of this one."""
    model: str = request.path_params["model"]
    return model


def _standing(request: Request) -> Standing:
    """How it stands with the version, whatever the client calls it."""
    state = State.AVAILABLE if _is_ready(request) else State.LOADING
    return Standing(request.path_params.get("version", VERSION), state)


def _json(body: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(body), status, media_type="application/json")


async def _not_found(request: Request, _: Exception) -> Response:
    return _answer(request, nothing_there(request.method, request.scope["path"]))


async def _wrong_method(request: Request, _: Exception) -> Response:
    return _answer(request, no_such_method(request.method, request.scope["path"], "GET"))


async def _refused(request: Request, error: Exception) -> Response:
    return _answer(request, error if isinstance(error, ServingError) else Internal(str(error)))


def _answer(request: Request, error: ServingError) -> Response:
    status, body, headers = refusal(error, dialect_of(request.scope["path"]))
    told = {name.decode(): value.decode() for name, value in headers}
    return Response(body, status, {"content-type": "application/json", **told})
