"""projects.models.*"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from serving.gateway.api.query.paging import PagedList
from serving.gateway.api.request_io import (
    json_response,
    model_name,
    page_response,
    read_resource,
    read_update_mask,
    resource_response,
)
from serving.gateway.catalog import Catalog, lookup, models
from serving.gateway.state.records import VersionRecord
from serving.names import ModelName
from serving.resources import Model, operation_to_json, resource_to_json


class ModelsApi:
    """The methods on models.

    `with_fresh_usage` adds to a version the usage that is not stored yet; a project may have `max_models`, 0:
    any number.
    """

    def __init__(
        self, catalog: Catalog, with_fresh_usage: Callable[[VersionRecord], VersionRecord], max_models: int
    ) -> None:
        self._catalog = catalog
        self._max_models = max_models
        self._with_fresh_usage = with_fresh_usage

    async def create(self, request: Request) -> Response:
        """projects.models.create."""
        model = await read_resource(request, Model)
        project = request.path_params["project"]
        return resource_response(
            await self._catalog.change(models.create_model, project, model, most=self._max_models)
        )

    async def get(self, request: Request) -> Response:
        """projects.models.get."""
        state = self._catalog.state
        record = lookup.get_model(state, model_name(request))
        return resource_response(lookup.render_model(state, record, self._with_fresh_usage))

    async def list(self, request: Request) -> Response:
        """projects.models.list."""
        state = self._catalog.state

        def render_item(name: ModelName) -> dict[str, Any]:
            return resource_to_json(lookup.render_model(state, state.models[name], self._with_fresh_usage))

        names = models.list_model_names(state, request.path_params["project"])
        return page_response(request, "models", PagedList(names, render_item))

    async def patch(self, request: Request) -> Response:
        """projects.models.patch."""
        mask, given = read_update_mask(request), await read_resource(request, Model)
        operation = await self._catalog.change(models.update_model, model_name(request), given, mask)
        return json_response(operation_to_json(operation))

    async def delete(self, request: Request) -> Response:
        """projects.models.delete."""
        operation = await self._catalog.change(models.delete_model, model_name(request))
        return json_response(operation_to_json(operation))
