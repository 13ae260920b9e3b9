"""projects.models.*"""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response

from serving.gateway.api.requests import (
    answer,
    answer_json,
    answer_page,
    model_name,
    read,
    read_mask,
)
from serving.gateway.catalog import Catalog, lookup, models
from serving.gateway.records import State
from serving.resources import Model, operation_to_wire, to_wire


class Models:
    """The methods on models; `read` is the state to show, `most` how many a project may have, 0: any."""

    def __init__(self, catalog: Catalog, read: Callable[[], State], most: int) -> None:
        self._catalog = catalog
        self._most = most
        self._read = read

    async def create(self, request: Request) -> Response:
        """projects.models.create."""
        model = await read(request, Model)
        project = request.path_params["project"]
        return answer(await self._catalog.change(models.create_model, project, model, most=self._most))

    async def get(self, request: Request) -> Response:
        """projects.models.get."""
        state = self._read()
        record = lookup.get_model(state, model_name(request))
        return answer(lookup.render_model(state, record))

    async def list(self, request: Request) -> Response:
        """projects.models.list."""
        found = models.list_models(self._read(), request.path_params["project"])
        return answer_page(request, "models", [to_wire(model) for model in found])

    async def patch(self, request: Request) -> Response:
        """projects.models.patch."""
        mask, given = read_mask(request), await read(request, Model)
        operation = await self._catalog.change(models.update_model, model_name(request), given, mask)
        return answer_json(operation_to_wire(operation))

    async def delete(self, request: Request) -> Response:
        """projects.models.delete."""
        operation = await self._catalog.change(models.delete_model, model_name(request))
        return answer_json(operation_to_wire(operation))
