"""Model and server metadata of TensorFlow Serving and the Open Inference Protocol over HTTP."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from serving.errors import FailedPrecondition, InvalidArgument, NotFound
from serving.gateway.api.request_io import Endpoint, json_response, read_json
from serving.gateway.catalog.lookup import address_to_name, resolve_address, resolve_version
from serving.gateway.control.schema_registry import SchemaRegistry
from serving.gateway.methods import ApiMethod
from serving.gateway.observability.model_statistics import ModelStatistics
from serving.gateway.state.records import CatalogState, VersionRecord
from serving.names import ModelName, VersionName
from serving.protocols import inference_metadata as inference
from serving.protocols import tensorflow_metadata as tensorflow
from serving.protocols import triton_extensions
from serving.protocols.addresses import ModelAddress
from serving.protocols.tensorflow_metadata import ServableState, VersionStatus
from serving.resources import VersionState

_NOT_READY = 503
_STATES: Mapping[VersionState | None, ServableState] = {
    VersionState.CREATING: ServableState.LOADING,
    VersionState.READY: ServableState.AVAILABLE,
    VersionState.UPDATING: ServableState.LOADING,
    VersionState.DELETING: ServableState.UNLOADING,
    VersionState.FAILED: ServableState.END,
}


class ProtocolMetadataApi:
    """The methods besides predictions.

    `state` is the catalog's state, `ready` says whether the server is up, `schemas` has the schemas of
    versions, `statistics` their statistics. `name` is the server's name.
    """

    def __init__(
        self,
        state: Callable[[], CatalogState],
        ready: Callable[[], bool],
        schemas: SchemaRegistry,
        statistics: ModelStatistics,
        name: str,
    ) -> None:
        self._state = state
        self._ready = ready
        self._schemas = schemas
        self._statistics = statistics
        self._name = name

    def build_endpoints(self) -> Mapping[str, Endpoint]:
        open_inference = "inference.GRPCInferenceService"
        return {
            "tensorflow.serving.ModelService.GetModelStatus": self.model_status,
            "tensorflow.serving.PredictionService.GetModelMetadata": self.model_signatures,
            f"{open_inference}.ServerLive": self.server_live,
            f"{open_inference}.ServerReady": self.server_ready,
            f"{open_inference}.ServerMetadata": self.server_metadata,
            f"{open_inference}.ModelReady": self.model_ready,
            f"{open_inference}.ModelMetadata": self.model_metadata,
            f"{open_inference}.ModelStatistics": self.model_statistics,
            f"{open_inference}.AllModelStatistics": self.all_statistics,
            f"{open_inference}.ModelConfig": self.model_config,
            f"{open_inference}.RepositoryIndex": self.repository_index,
            f"{open_inference}.RepositoryModelLoad": self.load_or_unload,
            f"{open_inference}.RepositoryModelUnload": self.load_or_unload,
        }

    async def model_status(self, request: Request) -> Response:
        """GET /v1/models/M."""
        return json_response(tensorflow.render_status(list_statuses(self._state(), _parse_address(request))))

    async def model_signatures(self, request: Request) -> Response:
        """GET /v1/models/M/metadata."""
        record = resolve_address(self._state(), _parse_address(request))
        schema = await self._schemas.get_schema(record)
        return json_response(tensorflow.render_metadata(_model_name(request), record.name.version, schema))

    async def server_live(self, _: Request) -> Response:
        """GET /v2/health/live."""
        return json_response(inference.render_live())

    async def server_ready(self, _: Request) -> Response:
        """GET /v2/health/ready."""
        is_up = self._ready()
        return json_response(inference.render_ready(is_up), 200 if is_up else _NOT_READY)

    async def server_metadata(self, _: Request) -> Response:
        """GET /v2."""
        return json_response(inference.render_server(self._name, triton_extensions.EXTENSIONS))

    async def model_ready(self, request: Request) -> Response:
        """GET /v2/models/M/ready."""
        answers = is_ready(self._state(), _parse_address(request))
        return json_response(
            inference.render_model_ready(_model_name(request), answers), 200 if answers else _NOT_READY
        )

    async def model_metadata(self, request: Request) -> Response:
        """GET /v2/models/M."""
        state, asked = self._state(), _parse_address(request)
        schema = await self._schemas.get_schema(resolve_address(state, asked))
        return json_response(
            inference.render_metadata(_model_name(request), list_statuses(state, asked), schema)
        )

    async def model_statistics(self, request: Request) -> Response:
        """GET /v2/models/M/stats."""
        found = map(self._statistics.get_statistics, find_versions(self._state(), _parse_address(request)))
        return json_response(
            {"model_stats": triton_extensions.render_statistics(_model_name(request), found)}
        )

    async def all_statistics(self, request: Request) -> Response:
        """GET /v2/models/stats."""
        project = request.path_params["project"]
        return json_response({"model_stats": collect_statistics(self._state(), project, self._statistics)})

    async def model_config(self, request: Request) -> Response:
        """GET /v2/models/M/config."""
        schema = await self._schemas.get_schema(resolve_address(self._state(), _parse_address(request)))
        return json_response(triton_extensions.render_model_config(_model_name(request), schema))

    async def repository_index(self, request: Request) -> Response:
        """POST /v2/repository/index."""
        body = await read_json(request)
        ready = body.get("ready", False) if isinstance(body, dict) else None
        if not isinstance(ready, bool):
            raise InvalidArgument('The request must be an object; its "ready" is true or false.')
        project = request.path_params["project"]
        return json_response(
            triton_extensions.render_repository_index(
                iter_version_statuses(self._state(), project), only_ready=ready
            )
        )

    async def load_or_unload(self, _: Request) -> Response:
        """POST /v2/repository/models/M/load and unload: 404, since clients retry on 501."""
        raise NotFound(triton_extensions.LOADING_UNSUPPORTED)


def iter_version_statuses(state: CatalogState, project: str) -> Iterator[tuple[str, VersionStatus]]:
    """The versions of a project's models, with the models' ids."""
    for model in state.model_order.list_children(project):
        for version in state.version_order.list_children(model):
            yield model.model, get_status(state.versions[version])


def collect_statistics(
    state: CatalogState, project: str, statistics: ModelStatistics
) -> list[dict[str, Any]]:
    return [
        one
        for model in state.model_order.list_children(project)
        for one in triton_extensions.render_statistics(
            model.model,
            (
                statistics.get_statistics(state.versions[version])
                for version in state.version_order.list_children(model)
            ),
        )
    ]


def with_default_project(method: ApiMethod, project: str, endpoint: Endpoint) -> Endpoint:
    """Set the project of requests whose path may have none."""

    @functools.wraps(endpoint)
    async def call_endpoint(request: Request) -> Response:
        request.path_params.setdefault("project", project)
        return await endpoint(request)

    return call_endpoint if method.is_foreign else endpoint


def _model_name(request: Request) -> str:
    """The name that the client uses for the model."""
    model: str = request.path_params["model"]
    return model


def _parse_address(request: Request) -> ModelAddress:
    path = request.path_params
    return ModelAddress(
        ModelName(path["project"], path["model"]), path.get("version", ""), path.get("label", "")
    )


def list_statuses(state: CatalogState, address: ModelAddress) -> list[VersionStatus]:
    """The status of the addressed version, or of all versions of the model. Raises NotFound."""
    return [get_status(record) for record in find_versions(state, address)]


def find_versions(state: CatalogState, address: ModelAddress) -> list[VersionRecord]:
    """The addressed version, or all versions of the model. Raises NotFound."""
    name = address_to_name(state, address)
    if isinstance(name, VersionName):
        return [state.versions[name]]
    versions = [state.versions[child] for child in state.version_order.list_children(name)]
    if not versions:
        raise NotFound(f"Could not find any versions of model {name}.")
    return versions


def is_ready(state: CatalogState, address: ModelAddress) -> bool:
    """Whether predictions for an address are answered. Raises NotFound."""
    name = address_to_name(state, address)
    try:
        resolve_version(state, name)
    except FailedPrecondition:
        return False
    return True


def get_status(record: VersionRecord) -> VersionStatus:
    version = record.version
    error = version.error_message if version.state is VersionState.FAILED else ""
    return VersionStatus(record.name.version, _STATES.get(version.state, ServableState.UNKNOWN), error)
