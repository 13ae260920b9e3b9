"""`GET /logs/…`: log entries of a version, from its log files. Not part of the AI Platform API."""

from __future__ import annotations

import asyncio
import datetime
import threading
from collections.abc import Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from serving.errors import Cancelled, FailedPrecondition, InvalidArgument
from serving.gateway.api.request_io import json_response, version_name, wait_for_disconnect
from serving.gateway.catalog.lookup import get_model, get_version
from serving.gateway.observability.log_reader import LogEntryHeading, LogReader
from serving.gateway.state.catalog_state import CatalogState
from serving.gateway.state.records import VersionRecord
from serving.gateway.thread_pool import ThreadPool
from serving.logs.journal import LogKind
from serving.logs.sinks.cloud_logging_entries import format_rfc3339
from serving.logs.sinks.writer_options import fallback_folder, folder_of_address
from serving.names import VersionName

_DEFAULT_LIMIT, _MAX_LIMIT = 100, 1000
# Reads at a time, and reads that may wait; one takes about a second at most.
_THREADS, _QUEUE = 2, 30


class VersionLogsApi:
    """Serves the files in `folder`, which holds all logs.

    With `separate_projects`, a request whose record does not name its project, as in records of earlier
    releases, is shown to nobody.
    """

    def __init__(self, folder: Path, state: Callable[[], CatalogState], *, separate_projects: bool) -> None:
        self._separate_projects = separate_projects
        self._folder = folder
        self._state = state
        self._threads = ThreadPool("logs", _THREADS, queue=_QUEUE)

    async def get(self, request: Request) -> Response:
        """Return the last entries of a version's log, or those before a `pageToken` or after a `cursor`."""
        query = request.query_params
        name = version_name(request)
        kind = _parse_kind(query.get("kind") or LogKind.REQUESTS)
        limit, since = _parse_limit(query.get("limit")), _parse_since(query.get("since"))
        cursor, page_token = query.get("cursor", ""), query.get("pageToken", "")
        record = get_version(self._state(), name)

        cancelled = threading.Event()

        def read_page() -> Response:
            files = LogReader(
                self._log_folder(record, kind), self._version_filter(name, kind), cancelled.is_set
            )
            page = files.read_after(cursor, limit) if cursor else files.read_last(limit, since, page_token)
            body = {"entries": page.entries, "cursor": page.cursor}
            if page.next_page_token:
                body["nextPageToken"] = page.next_page_token
            return json_response(body)

        reading = asyncio.create_task(self._threads.run(read_page))
        leaving = asyncio.create_task(wait_for_disconnect(request.receive))
        try:
            await asyncio.wait((reading, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                raise Cancelled("The client went away.")
            return reading.result()
        finally:
            cancelled.set()
            reading.cancel()
            leaving.cancel()

    def _version_filter(self, name: VersionName, kind: LogKind) -> Callable[[LogEntryHeading], bool]:
        """Several versions may log their requests to the same place, those of other projects too."""
        projects = {name.project} if self._separate_projects else {name.project, ""}

        def is_of_version(heading: LogEntryHeading) -> bool:
            known = kind is not LogKind.REQUESTS or heading.project in projects
            return known and heading.model == name.model and heading.model_version == name.version

        return is_of_version

    def _log_folder(self, record: VersionRecord, kind: LogKind) -> Path:
        """Raises FailedPrecondition where there is no log that can be read here."""
        name = record.name
        if kind is LogKind.REQUESTS:
            return self._request_log_folder(record)
        folder = self._folder / kind / name.project / name.model / name.version
        model = get_model(self._state(), name.parent).model
        switch, flag = {
            LogKind.ACCESS: (model.online_prediction_logging, "--enable-logging"),
            LogKind.CONSOLE: (model.online_prediction_console_logging, "--enable-console-logging"),
        }[kind]
        if not switch and not folder.exists():
            raise FailedPrecondition(
                f"{name.parent} has no {kind} log: only models created with {flag} have one."
            )
        return folder

    def _request_log_folder(self, record: VersionRecord) -> Path:
        config = record.version.request_logging_config
        if config is None:
            raise FailedPrecondition(
                f"The requests of {record.name} are not logged. Say where to: `pilotlight versions update "
                f"{record.name.version} --model {record.name.model} --bigquery-table-name WHERE "
                "--sampling-percentage 0.1`."
            )
        address = config.bigquery_table_name
        folder = folder_of_address(address) or fallback_folder(self._folder, address)
        if address.startswith("gs://") or (folder_of_address(address) is None and not folder.exists()):
            raise FailedPrecondition(
                f"The requests of {record.name} are logged to {address}; read them there."
            )
        return folder


def _parse_kind(text: str) -> LogKind:
    try:
        return LogKind(text)
    except ValueError:
        raise InvalidArgument(
            f"Field: kind Error: {text!r} is no log; there are {', '.join(LogKind)}.", field="kind"
        ) from None


def _parse_limit(text: str | None) -> int:
    try:
        limit = int(text or _DEFAULT_LIMIT)
    except ValueError:
        limit = 0
    if not 1 <= limit <= _MAX_LIMIT:
        raise InvalidArgument(
            f"Field: limit Error: {text!r} is no number from 1 to {_MAX_LIMIT}.", field="limit"
        )
    return limit


def _parse_since(text: str | None) -> str:
    if not text:
        return ""
    try:
        moment = datetime.datetime.fromisoformat(text)
        return format_rfc3339((moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp())
    except (ValueError, OverflowError):
        raise InvalidArgument(
            f"Field: since Error: {text!r} is no time like 2030-01-02T03:04:05Z.", field="since"
        ) from None
