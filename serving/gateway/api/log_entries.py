"""`POST /v2/entries:list`: logs of jobs in the format of Cloud Logging, for `gcloud … jobs stream-logs`."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections.abc import Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from serving.errors import InvalidArgument, field_error
from serving.gateway.access.access_control import AccessControl
from serving.gateway.api.request_io import json_response, read_resource, read_timeout
from serving.gateway.catalog.jobs import job_name
from serving.gateway.jobs.job_reader import JobReader
from serving.gateway.jobs.log_filter import LogFilter
from serving.gateway.jobs.log_lines import JobLogLine
from serving.gateway.jobs.log_query import (
    LinePosition,
    LogPart,
    LogQuery,
    build_entry_fields,
    merge_parts,
    position_of,
)
from serving.gateway.proxy.rate_limits import ApiRateLimits
from serving.gateway.request_context import get_caller
from serving.gateway.state.catalog_state import CatalogState
from serving.gateway.state.records import JobRecord
from serving.gateway.thread_pool import ThreadPool
from serving.names import check_project
from serving.resources import Resource

PERMISSION = "ml.jobs.get"
_ORDERS = ("timestamp asc", "timestamp desc")
_DEFAULT_PAGE_SIZE, _MAX_PAGE_SIZE = 50, 1000
_MAX_PROJECTS = 10
_TRIAL_LABEL = "ml.googleapis.com/trial_id"
_TOKEN = re.compile(r"(\d{1,19})/(\d{1,20})/(.{1,500})")
_THREADS, _QUEUE = 2, 30


class ListLogEntriesRequest(Resource, frozen=True):
    """`project_ids` is the older way to name projects."""

    resource_names: tuple[str, ...] = ()
    project_ids: tuple[str, ...] = ()
    filter: str = ""
    order_by: str = ""
    page_size: int = 0
    page_token: str = ""


class LogEntriesApi:
    """`access` is None while access control is off; a request may take `request_timeout` seconds."""

    def __init__(
        self,
        state: Callable[[], CatalogState],
        job_reader: JobReader,
        access: AccessControl | None,
        limits: ApiRateLimits,
        request_timeout: float,
    ) -> None:
        self._state = state
        self._job_reader = job_reader
        self._access = access
        self._limits = limits
        self._request_timeout = request_timeout
        self._threads = ThreadPool("log pages", _THREADS, queue=_QUEUE)

    async def list(self, request: Request) -> Response:
        """Return a page of the entries of one job, for callers who may see the job."""
        sent = await read_resource(request, ListLogEntriesRequest)
        projects = _parse_projects(sent)
        query = LogQuery(
            filter=sent.filter,
            count=_clamp_page_size(sent.page_size),
            descending=_is_descending(sent.order_by),
            after=_parse_page_token(sent.page_token),
        )
        job, seconds = LogFilter.from_text(sent.filter).job, read_timeout(request, self._request_timeout)
        names = [job_name(project, job) for project in projects]
        for project, name in zip(projects, names, strict=True):
            if self._access is not None:
                self._access.check_permission(get_caller(request.scope), PERMISSION, name)
            self._limits.admit(project, job=False)
        jobs = self._state().jobs
        records = [jobs[name] for name in names if name in jobs]
        found = await asyncio.gather(
            *(self._job_reader.read_log(record, query, seconds) for record in records)
        )
        parts = [(record, part) for record, parts in zip(records, found, strict=True) for part in parts]
        return await self._threads.run(_build_response, parts, query)


def _build_response(parts: Sequence[tuple[JobRecord, LogPart]], query: LogQuery) -> Response:
    page, is_last = merge_parts(parts, query)
    body: dict[str, Any] = {"entries": [_render_entry(*one) for one in page]} if page else {}
    if page and not is_last:
        token = "/".join(map(str, position_of(*page[-1]))).encode()
        body["nextPageToken"] = base64.urlsafe_b64encode(token).decode()
    return json_response(body)


def _render_entry(line: JobLogLine, record: JobRecord) -> dict[str, Any]:
    fixed = build_entry_fields(record)
    return {
        "logName": fixed["logName"],
        "resource": {
            "type": fixed["resource.type"],
            "labels": {
                "job_id": fixed["resource.labels.job_id"],
                "project_id": fixed["resource.labels.project_id"],
                "task_name": line.task,
            },
        },
        "insertId": line.insert_id,
        "timestamp": line.timestamp,
        "receiveTimestamp": line.timestamp,
        "severity": line.severity,
        "textPayload": line.text,
        **({"labels": {_TRIAL_LABEL: line.trial}} if line.trial else {}),
    }


# ---- the request


def _parse_projects(sent: ListLogEntriesRequest) -> Sequence[str]:
    found = list(sent.project_ids)
    for name in sent.resource_names:
        kind, _, project = name.partition("/")
        if kind != "projects" or "/" in project:
            raise field_error(
                InvalidArgument,
                "resource_names",
                f"{name[:200]!r} is not projects/PROJECT, as it must be.",
            )
        found.append(project)
    if not 0 < len(found) <= _MAX_PROJECTS:
        raise field_error(
            InvalidArgument, "resource_names", f"Name 1 to {_MAX_PROJECTS} projects, as in projects/PROJECT."
        )
    return [check_project(project) for project in dict.fromkeys(found)]


def _clamp_page_size(given: int) -> int:
    if given < 0:
        raise field_error(InvalidArgument, "page_size", f"{given} is not a number of entries.")
    return min(given, _MAX_PAGE_SIZE) or _DEFAULT_PAGE_SIZE


def _is_descending(order: str) -> bool:
    if order and order not in _ORDERS:
        raise field_error(InvalidArgument, "order_by", f"Entries are in the order {' or '.join(_ORDERS)}.")
    return order == _ORDERS[1]


def _parse_page_token(token: str) -> LinePosition | None:
    if not token:
        return None
    try:
        found = _TOKEN.fullmatch(base64.urlsafe_b64decode(token).decode())
    except (binascii.Error, UnicodeDecodeError, ValueError):
        found = None
    if found is None:
        raise field_error(InvalidArgument, "page_token", "This is not a token that a list gave out.")
    return int(found[1]), int(found[2]), found[3]
