"""projects.models.*"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from serving.gateway.api.paging import Listing
from serving.gateway.api.requests import (
    answer,
    answer_json,
    answer_page,
    model_name,
    read,
    read_mask,
)
from serving.gateway.catalog import Catalog, lookup, models
from serving.gateway.records import VersionRecord
from serving.names import ModelName
from serving.resources import Model, operation_to_json, resource_to_json


class Models:
    """The methods on models.

    `fresh` puts on a version what is not in the catalog yet; `most` is how many models a project may have,
    0: any number.
    """

    def __init__(self, catalog: Catalog, fresh: Callable[[VersionRecord], VersionRecord], most: int) -> None:
        self._catalog = catalog
        self._most = most
        self._fresh = fresh

    async def create(self, request: Request) -> Response:
        """projects.models.create."""
        model = await read(request, Model)
        project = request.path_params["project"]
        return answer(await self._catalog.change(models.create_model, project, model, most=self._most))

    async def get(self, request: Request) -> Response:
        """projects.models.get."""
        state = self._catalog.state
        record = lookup.get_model(state, model_name(request))
        return answer(lookup.render_model(state, record, self._fresh))

    async def list(self, request: Request) -> Response:
        """projects.models.list."""
        state = self._catalog.state

        def show(name: ModelName) -> dict[str, Any]:
            return resource_to_json(lookup.render_model(state, state.models[name], self._fresh))

        names = models.names_of_models(state, request.path_params["project"])
        return answer_page(request, "models", Listing(names, show))

    async def patch(self, request: Request) -> Response:
        """projects.models.patch."""
        mask, given = read_mask(request), await read(request, Model)
        operation = await self._catalog.change(models.update_model, model_name(request), given, mask)
        return answer_json(operation_to_json(operation))

    async def delete(self, request: Request) -> Response:
        """projects.models.delete."""
        operation = await self._catalog.change(models.delete_model, model_name(request))
        return answer_json(operation_to_json(operation))
