"""projects.models.versions.*"""

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
    version_name,
)
from serving.gateway.catalog import Catalog, lookup, versions
from serving.gateway.control.operation_runner import OperationRunner
from serving.gateway.state.records import VersionRecord
from serving.names import VersionName
from serving.resources import Version, operation_to_json, resource_to_json, to_camel_case


class VersionsApi:
    """The methods on versions.

    `with_fresh_usage` adds to a version the usage that is not stored yet; a project may have `max_versions`,
    0: any number.
    """

    def __init__(
        self,
        catalog: Catalog,
        operations: OperationRunner,
        with_fresh_usage: Callable[[VersionRecord], VersionRecord],
        max_versions: int,
    ) -> None:
        self._catalog = catalog
        self._max_versions = max_versions
        self._with_fresh_usage = with_fresh_usage
        self._operations = operations

    async def create(self, request: Request) -> Response:
        """projects.models.versions.create."""
        version = await read_resource(request, Version)
        await self._operations.check_sources(version)
        operation = await self._catalog.change(
            versions.create_version, model_name(request), version, most=self._max_versions
        )
        self._operations.begin(operation)
        return json_response(operation_to_json(operation))

    async def get(self, request: Request) -> Response:
        """projects.models.versions.get."""
        state = self._catalog.state
        record = lookup.get_version(state, version_name(request))
        return resource_response(lookup.render_version(state, self._with_fresh_usage(record)))

    async def list(self, request: Request) -> Response:
        """projects.models.versions.list."""
        state = self._catalog.state

        def render_item(name: VersionName) -> dict[str, Any]:
            return resource_to_json(
                lookup.render_version(state, self._with_fresh_usage(state.versions[name]))
            )

        names = versions.list_version_names(state, model_name(request))
        return page_response(request, "versions", PagedList(names, render_item))

    async def patch(self, request: Request) -> Response:
        """projects.models.versions.patch."""
        mask, given = read_update_mask(request), await read_resource(request, Version)
        if any(to_camel_case(path.split(".")[0]) == "requestLoggingConfig" for path in mask):
            await self._operations.check_logging(given)
        operation = await self._catalog.change(versions.update_version, version_name(request), given, mask)
        return json_response(operation_to_json(operation))

    async def set_default(self, request: Request) -> Response:
        """projects.models.versions.setDefault."""
        return resource_response(await self._catalog.change(versions.set_default, version_name(request)))

    async def delete(self, request: Request) -> Response:
        """projects.models.versions.delete."""
        operation = await self._catalog.change(versions.delete_version, version_name(request))
        self._operations.begin(operation)
        return json_response(operation_to_json(operation))
