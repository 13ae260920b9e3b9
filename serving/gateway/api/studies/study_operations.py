"""projects.locations.operations.*: suggestions and checks, which are done when they are answered."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from serving.gateway.api.request_io import json_response
from serving.gateway.api.studies.rendering import render_study_operation
from serving.gateway.catalog import Catalog, studies
from serving.gateway.state.study_records import StudyOperationRecord


class StudyOperationsApi:
    """The methods on operations of a location."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    async def get(self, request: Request) -> Response:
        """projects.locations.operations.get."""
        operation = self._find_operation(request)
        snapshot = studies.get_study(self._catalog.state, operation.study)
        return json_response(render_study_operation(snapshot, operation))

    async def cancel(self, request: Request) -> Response:
        """projects.locations.operations.cancel: all are done, and stay as they are."""
        self._find_operation(request)
        return json_response({})

    def _find_operation(self, request: Request) -> StudyOperationRecord:
        path = request.path_params
        return studies.get_study_operation(
            self._catalog.state, path["project"], path["location"], path["operation"]
        )
