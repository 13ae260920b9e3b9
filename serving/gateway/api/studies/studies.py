"""projects.locations.studies.*"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from serving.gateway.api.query.paging import PagedList
from serving.gateway.api.request_io import json_response, read_resource, whole_list_response
from serving.gateway.api.studies.rendering import render_study
from serving.gateway.catalog import Catalog, studies
from serving.gateway.catalog.study_checks import read_study
from serving.gateway.state.study_records import StudySnapshot
from serving.gateway.thread_pool import ThreadPool
from serving.names import StudyName
from serving.study_resources import StudyBody

# How many lists may wait for the thread.
_QUEUE = 31


class StudiesApi:
    """The methods on studies; a project may have `max_studies`, 0: any number."""

    def __init__(self, catalog: Catalog, max_studies: int) -> None:
        self._catalog = catalog
        self._max_studies = max_studies
        # A list may have a thousand studies of hundreds of KiB.
        self._threads = ThreadPool("studies", 1, queue=_QUEUE)

    async def create(self, request: Request) -> Response:
        """projects.locations.studies.create."""
        body = await read_resource(request, StudyBody)
        path, query = request.path_params, request.query_params
        study_id = query.get("studyId") or query.get("study_id") or ""
        name = StudyName(path["project"], path["location"], study_id)
        snapshot = await self._catalog.change(
            studies.create_study, name, read_study(body.study_config), most=self._max_studies
        )
        return json_response(render_study(snapshot.record))

    async def get(self, request: Request) -> Response:
        """projects.locations.studies.get."""
        return json_response(render_study(studies.get_study(self._catalog.state, study_name(request)).record))

    async def list(self, request: Request) -> Response:
        """projects.locations.studies.list."""
        path = request.path_params
        found = studies.list_studies(self._catalog.state, path["project"], path["location"])
        listing = PagedList(found, _render_snapshot, _get_study_name)
        return await self._threads.run(whole_list_response, request, "studies", listing)

    async def delete(self, request: Request) -> Response:
        """projects.locations.studies.delete."""
        await self._catalog.change(studies.delete_study, study_name(request))
        return json_response({})


def _render_snapshot(snapshot: StudySnapshot) -> dict[str, Any]:
    return render_study(snapshot.record)


def _get_study_name(snapshot: StudySnapshot) -> str:
    return str(snapshot.record.name)


def study_name(request: Request) -> StudyName:
    path = request.path_params
    return StudyName(path["project"], path["location"], path["study"])
