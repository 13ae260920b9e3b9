"""Metadata of models and the server in the words of other protocols, from the catalog's records.

No node is started for it: a version without nodes answers predictions too, so it counts as ready.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from serving.errors import FailedPrecondition, InvalidArgument, NotFound
from serving.gateway.api.request_io import Endpoint, json_response, read_json
from serving.gateway.catalog.lookup import address_to_name, resolve_address, resolve_version
from serving.gateway.control.schema_registry import SchemaRegistry
from serving.gateway.methods import ApiMethod
from serving.gateway.observability.prediction_stats import ModelStatistics
from serving.gateway.state.catalog_state import CatalogState
from serving.gateway.state.records import VersionRecord
from serving.model_schema import ModelSchema
from serving.names import ModelName, VersionName
from serving.protocols import inference_metadata as inference
from serving.protocols import triton_extensions
from serving.protocols.addresses import ModelAddress
from serving.protocols.metadata_calls import answer_http_call
from serving.protocols.tensorflow_metadata import ServableState, VersionStatus
from serving.resources import VersionState

_INFERENCE = "inference.GRPCInferenceService"
_METHODS = (
    "tensorflow.serving.ModelService.GetModelStatus",
    "tensorflow.serving.PredictionService.GetModelMetadata",
    *(
        f"{_INFERENCE}.{name}"
        for name in (
            "ServerLive",
            "ServerReady",
            "ServerMetadata",
            "ModelReady",
            "ModelMetadata",
            "ModelStatistics",
            "AllModelStatistics",
            "ModelConfig",
        )
    ),
)
_STATES: Mapping[VersionState | None, ServableState] = {
    VersionState.CREATING: ServableState.LOADING,
    VersionState.READY: ServableState.AVAILABLE,
    VersionState.UPDATING: ServableState.LOADING,
    VersionState.DELETING: ServableState.UNLOADING,
    VersionState.FAILED: ServableState.END,
}


@dataclass(frozen=True, slots=True)
class CatalogModelInfo:
    """Information about the server, and about the model or version of an address.

    `is_server_ready` says whether the server is up. `project` is that of models which are not named in full.
    """

    state: CatalogState
    is_server_ready: bool
    schemas: SchemaRegistry
    statistics: ModelStatistics
    server_name: str
    project: str
    asked: ModelAddress | None = None  # None: all of the project's models

    def is_serving(self) -> bool:
        return self.is_server_ready

    def server_metadata(self) -> Mapping[str, Any]:
        return inference.render_server(self.server_name, triton_extensions.EXTENSIONS)

    def is_model_ready(self) -> bool:
        name = address_to_name(self.state, self._address)
        try:
            resolve_version(self.state, name)
        except FailedPrecondition:
            return False
        return True

    def version_statuses(self) -> Sequence[VersionStatus]:
        return [_get_status(record) for record in self._find_versions()]

    async def resolve_schema(self) -> tuple[str, ModelSchema]:
        record = resolve_address(self.state, self._address)
        return record.name.version, await self.schemas.fetch_schema(record)

    def list_statistics(self, model: str) -> Sequence[Mapping[str, Any]]:
        if self.asked is not None:
            return self._render_statistics(model, self._find_versions())
        return [
            one
            for name in self.state.model_order.list_children(self.project)
            for one in self._render_statistics(name.model, self._list_versions_of(name))
        ]

    def list_all_versions(self) -> Iterator[tuple[str, VersionStatus]]:
        for model in self.state.model_order.list_children(self.project):
            for record in self._list_versions_of(model):
                yield model.model, _get_status(record)

    @property
    def _address(self) -> ModelAddress:
        return self.asked or ModelAddress(ModelName("", ""))

    def _find_versions(self) -> Sequence[VersionRecord]:
        """The addressed version, or all versions of the model. Raises NotFound."""
        name = address_to_name(self.state, self._address)
        if isinstance(name, VersionName):
            return [self.state.versions[name]]
        versions = self._list_versions_of(name)
        if not versions:
            raise NotFound(f"Could not find any versions of model {name}.")
        return versions

    def _list_versions_of(self, model: ModelName) -> Sequence[VersionRecord]:
        return [self.state.versions[name] for name in self.state.version_order.list_children(model)]

    def _render_statistics(
        self, model: str, versions: Sequence[VersionRecord]
    ) -> Sequence[Mapping[str, Any]]:
        found = map(self.statistics.get_statistics, versions)
        return triton_extensions.render_statistics(model, found)


class ProtocolMetadataApi:
    """The methods besides predictions, over HTTP. `describe` gives the information about the server now."""

    def __init__(self, describe: Callable[[], CatalogModelInfo]) -> None:
        self._describe = describe

    def build_endpoints(self) -> Mapping[str, Endpoint]:
        return {
            **{method: functools.partial(self._answer, method) for method in _METHODS},
            f"{_INFERENCE}.RepositoryIndex": self.index_repository,
            f"{_INFERENCE}.RepositoryModelLoad": self.refuse_loading,
            f"{_INFERENCE}.RepositoryModelUnload": self.refuse_loading,
        }

    async def index_repository(self, request: Request) -> Response:
        """POST /v2/repository/index."""
        body = await read_json(request)
        ready = body.get("ready", False) if isinstance(body, dict) else None
        if not isinstance(ready, bool):
            raise InvalidArgument('The request must be an object; its "ready" is true or false.')
        return await self._answer(f"{_INFERENCE}.RepositoryIndex", request, only_ready=ready)

    async def refuse_loading(self, _: Request) -> Response:
        """POST /v2/repository/models/M/load and unload: 404, since clients retry on 501."""
        raise NotFound(triton_extensions.LOADING_UNSUPPORTED)

    async def _answer(self, method: str, request: Request, *, only_ready: bool = False) -> Response:
        path = request.path_params
        model, asked = path.get("model", ""), None
        if model:
            name = ModelName(path["project"], model)
            asked = ModelAddress(name, path.get("version", ""), path.get("label", ""))
        info = replace(self._describe(), project=path["project"], asked=asked)
        status, found = await answer_http_call(method, model, info, only_ready=only_ready)
        return json_response(found, status)


def with_default_project(method: ApiMethod, project: str, endpoint: Endpoint) -> Endpoint:
    """Set the project of requests whose path may have none."""

    @functools.wraps(endpoint)
    async def call_endpoint(request: Request) -> Response:
        request.path_params.setdefault("project", project)
        return await endpoint(request)

    return call_endpoint if method.is_foreign else endpoint


def _get_status(record: VersionRecord) -> VersionStatus:
    version = record.version
    error = version.error_message if version.state is VersionState.FAILED else ""
    return VersionStatus(record.name.version, _STATES.get(version.state, ServableState.UNKNOWN), error)
