"""What TensorFlow Serving and the Open Inference Protocol tell of models over HTTP, and of the server."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response

from serving.gateway.api.requests import Endpoint, answer_json
from serving.gateway.catalog.lookup import resolve_address
from serving.gateway.methods import Method
from serving.gateway.records import State
from serving.gateway.schemas import Schemas
from serving.gateway.standings import is_ready, standings
from serving.names import ModelName
from serving.protocols import inference_metadata as inference
from serving.protocols import tensorflow_status as tensorflow
from serving.protocols.addresses import Address

_NOT_READY = 503


class Protocols:
    """The methods besides predictions.

    `state` is what the server remembers, `ready` whether it is up, and `schemas` knows what versions take.
    """

    def __init__(self, state: Callable[[], State], ready: Callable[[], bool], schemas: Schemas) -> None:
        self._state = state
        self._ready = ready
        self._schemas = schemas

    def endpoints(self) -> Mapping[str, Endpoint]:
        """Each method with its endpoint."""
        open_inference = "inference.GRPCInferenceService"
        return {
            "tensorflow.serving.ModelService.GetModelStatus": self.model_status,
            "tensorflow.serving.PredictionService.GetModelMetadata": self.signatures,
            f"{open_inference}.ServerLive": self.server_live,
            f"{open_inference}.ServerReady": self.server_ready,
            f"{open_inference}.ServerMetadata": self.server_metadata,
            f"{open_inference}.ModelReady": self.model_ready,
            f"{open_inference}.ModelMetadata": self.model_metadata,
        }

    async def model_status(self, request: Request) -> Response:
        """GET /v1/models/M."""
        return answer_json(tensorflow.status(standings(self._state(), _asked(request))))

    async def signatures(self, request: Request) -> Response:
        """GET /v1/models/M/metadata."""
        record = resolve_address(self._state(), _asked(request))
        schema = await self._schemas.of(record)
        return answer_json(tensorflow.metadata(_model(request), record.name.version, schema))

    async def server_live(self, _: Request) -> Response:
        """GET /v2/health/live."""
        return answer_json(inference.live())

    async def server_ready(self, _: Request) -> Response:
        """GET /v2/health/ready."""
        is_up = self._ready()
        return answer_json(inference.ready(is_up), 200 if is_up else _NOT_READY)

    async def server_metadata(self, _: Request) -> Response:
        """GET /v2."""
        return answer_json(inference.server())

    async def model_ready(self, request: Request) -> Response:
        """GET /v2/models/M/ready."""
        answers = is_ready(self._state(), _asked(request))
        return answer_json(inference.model_ready(_model(request), answers), 200 if answers else _NOT_READY)

    async def model_metadata(self, request: Request) -> Response:
        """GET /v2/models/M."""
        state, asked = self._state(), _asked(request)
        schema = await self._schemas.of(resolve_address(state, asked))
        return answer_json(inference.metadata(_model(request), standings(state, asked), schema))


def housed(method: Method, project: str, endpoint: Endpoint) -> Endpoint:
    """The endpoint, for requests whose path may have no project: it is this one then."""

    @functools.wraps(endpoint)
    async def call(request: Request) -> Response:
        request.path_params.setdefault("project", project)
        return await endpoint(request)

    return call if method.is_foreign else endpoint


def _model(request: Request) -> str:
    """What the client calls the model."""
    model: str = request.path_params["model"]
    return model


def _asked(request: Request) -> Address:
    path = request.path_params
    return Address(ModelName(path["project"], path["model"]), path.get("version", ""), path.get("label", ""))
