"""projects.operations.*"""

from __future__ import annotations

import operator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from serving.gateway.api.paging import Listing
from serving.gateway.api.requests import answer_json, answer_page
from serving.gateway.catalog import Catalog, operations
from serving.gateway.index import operation_key
from serving.gateway.operations import Operations as Runner
from serving.resources import operation_to_json


class Operations:
    """The methods on operations."""

    def __init__(self, catalog: Catalog, runner: Runner) -> None:
        self._catalog = catalog
        self._runner = runner

    async def get(self, request: Request) -> Response:
        """projects.operations.get."""
        record = operations.get_operation(self._catalog.state, _name(request))
        return answer_json(operation_to_json(record.operation))

    async def list(self, request: Request) -> Response:
        """projects.operations.list."""
        state = self._catalog.state

        def show(key: tuple[int, str]) -> dict[str, Any]:
            return operation_to_json(state.operations[key[1]].operation)

        found = operations.list_operations(state, request.path_params["project"])
        listing = Listing(found, show, operator.itemgetter(1), operation_key)
        return answer_page(request, "operations", listing)

    async def cancel(self, request: Request) -> Response:
        """projects.operations.cancel."""
        await self._runner.cancel(_name(request))
        return answer_json({})


def _name(request: Request) -> str:
    return "projects/{project}/operations/{operation}".format(**request.path_params)
