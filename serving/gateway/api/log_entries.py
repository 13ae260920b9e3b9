"""`POST /v2/entries:list`: logs of jobs in the format of Cloud Logging, for `gcloud … jobs stream-logs`."""

from __future__ import annotations

import base64
import binascii
import heapq
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from serving.errors import InvalidArgument, field_error
from serving.gateway.access.access_control import AccessControl
from serving.gateway.api.request_io import json_response, read_resource
from serving.gateway.catalog.jobs import job_name
from serving.gateway.jobs.job_queue import JobQueue
from serving.gateway.jobs.log_filter import LogFilter
from serving.gateway.jobs.log_lines import JobLogLine
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
# Of the texts of one answer.
_MAX_PAGE_BYTES = 8 << 20
_RESOURCE_TYPE = "ml_job"
_TRIAL_LABEL = "ml.googleapis.com/trial_id"
_TOKEN = re.compile(r"(\d{1,19})/(\d{1,18})/(.{1,500})")
_THREADS, _QUEUE = 2, 30

# Of an entry among those of all jobs: its time, its number among those of that time, and its job.
EntryPosition = tuple[int, int, str]


class ListLogEntriesRequest(Resource, frozen=True):
    """`project_ids` is the older way to name projects."""

    resource_names: tuple[str, ...] = ()
    project_ids: tuple[str, ...] = ()
    filter: str = ""
    order_by: str = ""
    page_size: int = 0
    page_token: str = ""


class LogEntriesApi:
    """`access` is None while access control is off."""

    def __init__(
        self,
        state: Callable[[], CatalogState],
        job_queue: JobQueue,
        access: AccessControl | None,
        limits: ApiRateLimits,
    ) -> None:
        self._state = state
        self._job_queue = job_queue
        self._access = access
        self._limits = limits
        self._threads = ThreadPool("log entries", _THREADS, queue=_QUEUE)

    async def list(self, request: Request) -> Response:
        """Return a page of the entries of one job, for callers who may see the job."""
        sent = await read_resource(request, ListLogEntriesRequest)
        projects = _parse_projects(sent)
        size, descending = _clamp_page_size(sent.page_size), _is_descending(sent.order_by)
        after = _parse_page_token(sent.page_token)
        chosen = LogFilter.from_text(sent.filter)
        names = [job_name(project, chosen.job) for project in projects]
        for project, name in zip(projects, names, strict=True):
            if self._access is not None:
                self._access.check_permission(get_caller(request.scope), PERMISSION, name)
            self._limits.admit(project, job=False)
        jobs = self._state().jobs
        records = [jobs[name] for name in names if name in jobs]

        def build_response() -> Response:
            return json_response(self._build_page(records, chosen, size, descending=descending, after=after))

        return await self._threads.run(build_response)

    def _build_page(
        self,
        records: Sequence[JobRecord],
        chosen: LogFilter,
        size: int,
        *,
        descending: bool,
        after: EntryPosition | None,
    ) -> dict[str, Any]:
        since = chosen.earliest_time if after is None or descending else max(chosen.earliest_time, after[0])
        lines = heapq.merge(
            *(self._filter_lines(record, chosen, since) for record in records), key=_entry_position
        )
        found = choose_lines(lines, size + 1, descending=descending, after=after)
        entries, taken = [], 0
        for line, record in itertools.islice(found, size):
            if taken and taken + len(line.text) > _MAX_PAGE_BYTES:
                break
            taken += len(line.text)
            entries.append(_render_entry(line, record))
        body: dict[str, Any] = {"entries": entries} if entries else {}
        if len(entries) < len(found):
            token = "/".join(map(str, _entry_position(found[len(entries) - 1]))).encode()
            body["nextPageToken"] = base64.urlsafe_b64encode(token).decode()
        return body

    def _filter_lines(
        self, record: JobRecord, chosen: LogFilter, since: int
    ) -> Iterator[tuple[JobLogLine, JobRecord]]:
        """In order, from a time on in microseconds since the epoch."""
        matches = chosen.build_matcher(_common_fields(record))
        lines = self._job_queue.iter_log_lines(record, since)
        return ((line, record) for line in lines if matches(line))


def choose_lines(
    lines: Iterator[tuple[JobLogLine, JobRecord]],
    count: int,
    *,
    descending: bool,
    after: EntryPosition | None,
) -> Sequence[tuple[JobLogLine, JobRecord]]:
    """The first of the ordered lines, or the last ones, behind a position; reads no more than it needs."""
    if descending:
        before = (one for one in lines if after is None or _entry_position(one) < after)
        return heapq.nlargest(count, before, key=_entry_position)
    behind = (one for one in lines if after is None or _entry_position(one) > after)
    return list(itertools.islice(behind, count))


def _common_fields(record: JobRecord) -> dict[str, str]:
    """The fields that all entries of a job have."""
    project = record.name.split("/")[1]
    return {
        "logName": f"projects/{project}/logs/ml.googleapis.com%2Fjob",
        "resource.type": _RESOURCE_TYPE,
        "resource.labels.job_id": record.job.job_id,
        "resource.labels.project_id": project,
    }


def _render_entry(line: JobLogLine, record: JobRecord) -> dict[str, Any]:
    fixed = _common_fields(record)
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


def _entry_position(found: tuple[JobLogLine, JobRecord]) -> EntryPosition:
    line, record = found
    return line.time, line.number, record.name


def _parse_page_token(token: str) -> EntryPosition | None:
    if not token:
        return None
    try:
        found = _TOKEN.fullmatch(base64.urlsafe_b64decode(token).decode())
    except (binascii.Error, UnicodeDecodeError, ValueError):
        found = None
    if found is None:
        raise field_error(InvalidArgument, "page_token", "This is not a token that a list gave out.")
    return int(found[1]), int(found[2]), found[3]
