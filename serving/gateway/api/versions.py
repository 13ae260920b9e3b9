"""projects.models.versions.*"""

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
    version_name,
)
from serving.gateway.catalog import Catalog, lookup, versions
from serving.gateway.operations import Operations
from serving.gateway.records import VersionRecord
from serving.names import VersionName
from serving.resources import Version, operation_to_json, resource_to_json, to_camel_case


class Versions:
    """The methods on versions.

    `fresh` puts on one what is not in the catalog yet; `most` is how many a project may have, 0: any number.
    """

    def __init__(
        self,
        catalog: Catalog,
        operations: Operations,
        fresh: Callable[[VersionRecord], VersionRecord],
        most: int,
    ) -> None:
        self._catalog = catalog
        self._most = most
        self._fresh = fresh
        self._operations = operations

    async def create(self, request: Request) -> Response:
        """projects.models.versions.create."""
        version = await read(request, Version)
        await self._operations.check_sources(version)
        operation = await self._catalog.change(
            versions.create_version, model_name(request), version, most=self._most
        )
        self._operations.begin(operation)
        return answer_json(operation_to_json(operation))

    async def get(self, request: Request) -> Response:
        """projects.models.versions.get."""
        state = self._catalog.state
        record = lookup.get_version(state, version_name(request))
        return answer(lookup.render_version(state, self._fresh(record)))

    async def list(self, request: Request) -> Response:
        """projects.models.versions.list."""
        state = self._catalog.state

        def show(name: VersionName) -> dict[str, Any]:
            return resource_to_json(lookup.render_version(state, self._fresh(state.versions[name])))

        names = versions.names_of_versions(state, model_name(request))
        return answer_page(request, "versions", Listing(names, show))

    async def patch(self, request: Request) -> Response:
        """projects.models.versions.patch."""
        mask, given = read_mask(request), await read(request, Version)
        if any(to_camel_case(path.split(".")[0]) == "requestLoggingConfig" for path in mask):
            await self._operations.check_logging(given)
        operation = await self._catalog.change(versions.update_version, version_name(request), given, mask)
        return answer_json(operation_to_json(operation))

    async def set_default(self, request: Request) -> Response:
        """projects.models.versions.setDefault."""
        return answer(await self._catalog.change(versions.set_default, version_name(request)))

    async def delete(self, request: Request) -> Response:
        """projects.models.versions.delete."""
        operation = await self._catalog.change(versions.delete_version, version_name(request))
        self._operations.begin(operation)
        return answer_json(operation_to_json(operation))
