"""`GET …:schema`: inputs and outputs of a version. Not part of the AI Platform API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from serving.errors import FailedPrecondition
from serving.gateway.api.request_io import json_response, model_name, version_name
from serving.gateway.catalog.lookup import get_model, get_version
from serving.gateway.control.schema_registry import SchemaRegistry
from serving.gateway.state.catalog_state import CatalogState
from serving.gateway.state.records import VersionRecord
from serving.model_schema import schema_to_json, with_bare_answers
from serving.names import VersionName


class ModelSchemasApi:
    """`read` is the state to show, `single_output` the setting."""

    def __init__(
        self, schemas: SchemaRegistry, read_state: Callable[[], CatalogState], single_output: str
    ) -> None:
        self._schemas = schemas
        self._read_state = read_state
        self._single_output = single_output

    async def get_version_schema(self, request: Request) -> Response:
        """`GET …/versions/V:schema`."""
        return await self._schema_response(get_version(self._read_state(), version_name(request)))

    async def get_model_schema(self, request: Request) -> Response:
        """`GET …/models/M:schema`: that of the default version."""
        state, name = self._read_state(), model_name(request)
        default = get_model(state, name).default
        if not default:
            raise FailedPrecondition(f"The model {name} has no default version yet.")
        return await self._schema_response(get_version(state, VersionName(name.project, name.model, default)))

    async def _schema_response(self, record: VersionRecord) -> Response:
        bare = record.deployed is not None and record.deployed.answers_bare_output(self._single_output)
        schema = with_bare_answers(await self._schemas.fetch_schema(record), bare=bare)
        rendered: dict[str, Any] = {"version": str(record.name), **schema_to_json(schema)}
        return json_response(rendered)
