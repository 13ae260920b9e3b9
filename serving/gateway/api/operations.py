"""projects.operations.*"""

from __future__ import annotations

import operator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from serving.gateway.api.query.paging import PagedList
from serving.gateway.api.request_io import json_response, page_response
from serving.gateway.catalog import Catalog, operations
from serving.gateway.control.operation_runner import OperationRunner
from serving.gateway.state.record_indexes import operation_sort_key
from serving.resources import operation_to_json


class OperationsApi:
    """The methods on operations."""

    def __init__(self, catalog: Catalog, runner: OperationRunner) -> None:
        self._catalog = catalog
        self._runner = runner

    async def get(self, request: Request) -> Response:
        """projects.operations.get."""
        record = operations.get_operation(self._catalog.state, _operation_name(request))
        return json_response(operation_to_json(record.operation))

    async def list(self, request: Request) -> Response:
        """projects.operations.list."""
        state = self._catalog.state

        def render_item(key: tuple[int, str]) -> dict[str, Any]:
            return operation_to_json(state.operations[key[1]].operation)

        found = operations.list_operations(state, request.path_params["project"])
        listing = PagedList(found, render_item, operator.itemgetter(1), operation_sort_key)
        return page_response(request, "operations", listing)

    async def cancel(self, request: Request) -> Response:
        """projects.operations.cancel."""
        await self._runner.cancel(_operation_name(request))
        return json_response({})


def _operation_name(request: Request) -> str:
    return "projects/{project}/operations/{operation}".format(**request.path_params)
