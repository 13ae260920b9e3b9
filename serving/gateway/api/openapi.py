"""`/openapi.json`, and `/docs`, the page on which predictions are tried."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from starlette.requests import Request
from starlette.responses import Response

from serving.config import ServeConfig
from serving.errors import InvalidArgument, field_error
from serving.gateway.access.access_control import AccessControl
from serving.gateway.api.documents.openapi_document import build_server_document, iter_prediction_paths
from serving.gateway.api.query.paging import decode_page_token, encode_page_token, parse_page_size
from serving.gateway.api.request_io import json_response
from serving.gateway.request_context import Caller, get_caller
from serving.gateway.state.catalog_state import CatalogState
from serving.gateway.state.records import VersionRecord
from serving.gateway.thread_pool import ThreadPool
from serving.names import ModelName, VersionName, check_project, parse_model_or_version_name
from serving.openapi import docs_page
from serving.resources import VersionState

# Bytes of the packed schemas in one document.
_MAX_SCHEMA_BYTES = 1 << 18
_QUEUE = 31
_VIEW_PERMISSIONS = ("ml.versions.get",)


class OpenApiDocumentApi:
    """`state` is the state to show, `access` None while access control is off."""

    def __init__(
        self, state: Callable[[], CatalogState], access: AccessControl | None, config: ServeConfig
    ) -> None:
        self._state = state
        self._access = access
        self._threads = ThreadPool("openapi", 1, queue=_QUEUE)
        self._old_errors = config.legacy_model_errors
        self._single_output = config.single_output
        self._base_document = build_server_document(
            tokens=access is not None, project=config.default_project, old_errors=self._old_errors
        )

    async def get_document(self, request: Request) -> Response:
        """`GET /openapi.json`: all routes, and the predictions of one page of versions."""
        query = request.query_params
        size, parent = parse_page_size(query.get("pageSize", "")), _parse_parent(query.get("parent", ""))
        found = self._iter_visible_versions(
            get_caller(request.scope), parent, _parse_page_token(query.get("pageToken", ""))
        )
        shown = list(itertools.islice(found, size + 1))
        fitting = _take_fitting(shown[:size])
        token = encode_page_token(str(fitting[-1].name)) if len(fitting) < len(shown) else ""
        # Not on the event loop: uncached descriptions take tens of milliseconds.
        return await self._threads.run(self._render_document, fitting, token)

    def _render_document(self, records: Sequence[VersionRecord], token: str) -> Response:
        info, paths = self._base_document["info"], self._base_document["paths"]
        predictions = iter_prediction_paths(
            records, old_errors=self._old_errors, single_output=self._single_output
        )
        document = {**self._base_document, "paths": {**paths, **dict(predictions)}}
        if token:
            document["info"] = {**info, "x-next-page-token": token}
        return json_response(document)

    async def get_docs_page(self, _: Request) -> Response:
        """`GET /docs`."""
        return Response(docs_page.read_page(), headers=dict(docs_page.page_headers()))

    def _iter_visible_versions(
        self, caller: Caller, parent: ModelName | str, after: VersionName | None
    ) -> Iterator[VersionRecord]:
        """The READY versions that a caller may see, by name, after the given one."""
        state = self._state()
        for model in _iter_models(state, parent):
            if after is not None and model < after.parent:
                continue
            for name in state.version_order.list_children(model):
                record = state.versions[name]
                is_next = after is None or name > after
                if is_next and record.version.state is VersionState.READY and self._can_see(caller, name):
                    yield record

    def _can_see(self, caller: Caller, name: VersionName) -> bool:
        return self._access is None or bool(
            self._access.filter_permissions(caller, str(name), _VIEW_PERMISSIONS)
        )


def _iter_models(state: CatalogState, parent: ModelName | str) -> Iterator[ModelName]:
    """The models that are `parent`, or below it; "" is above all."""
    if isinstance(parent, ModelName):
        yield parent
        return
    for project in (parent,) if parent else sorted({name.project for name in state.models}):
        yield from state.model_order.list_children(project)


def _take_fitting(records: Sequence[VersionRecord]) -> Sequence[VersionRecord]:
    """Return as many of them as fit in a document, at least one."""
    total = 0
    for place, record in enumerate(records):
        total += len(record.deployed.schema) if record.deployed else 0
        if place and total > _MAX_SCHEMA_BYTES:
            return records[:place]
    return records


def _parse_parent(text: str) -> ModelName | str:
    """Return a model, or the id of a project. Raises InvalidArgument."""
    kind, _, rest = text.partition("/")
    if text and kind == "projects" and "/" not in rest:
        return check_project(rest)
    if not text:
        return ""
    name = parse_model_or_version_name(text)
    if isinstance(name, VersionName):
        raise field_error(InvalidArgument, "parent", "Name a project or a model, no version.")
    return name


def _parse_page_token(token: str) -> VersionName | None:
    name = parse_model_or_version_name(decode_page_token(token)) if token else None
    if isinstance(name, ModelName):
        raise field_error(InvalidArgument, "page_token", "This is not a token that the document gave out.")
    return name
