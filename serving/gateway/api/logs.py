"""`GET /logs/…`: what a version has logged, from the files of its logs. Not part of the AI Platform API."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from serving.errors import FailedPrecondition, InvalidArgument
from serving.gateway.api.requests import answer_json, version_name
from serving.gateway.catalog.lookup import get_model, get_version
from serving.gateway.log_files import LogFiles
from serving.gateway.records import State, VersionRecord
from serving.journal import Kind
from serving.names import VersionName
from serving.sinks.entries import rfc3339
from serving.sinks.places import own_folder, place

_LIMIT, _MOST = 100, 1000


class Logs:
    """The endpoint. `folder` is the one of all logs."""

    def __init__(self, folder: Path, state: Callable[[], State]) -> None:
        self._folder = folder
        self._state = state

    async def get(self, request: Request) -> Response:
        """The last entries of a version's log, or with `cursor` those after the ones of an earlier answer."""
        query = request.query_params
        name = version_name(request)
        kind = _kind(query.get("kind") or Kind.REQUESTS)
        limit, since, cursor = _limit(query.get("limit")), _since(query.get("since")), query.get("cursor")
        record = get_version(self._state(), name)

        def read() -> dict[str, Any]:
            files = LogFiles(self._place(record, kind), _meant(name))
            page = files.after(cursor, limit) if cursor else files.last(limit, since)
            return {"entries": page.entries, "cursor": page.cursor}

        return answer_json(await asyncio.to_thread(read))

    def _place(self, record: VersionRecord, kind: Kind) -> Path:
        """Where the log is. Raises FailedPrecondition where there is none to be read here."""
        name = record.name
        if kind is Kind.REQUESTS:
            return self._requests(record)
        folder = self._folder / kind / name.project / name.model / name.version
        model = get_model(self._state(), name.parent).model
        switch, flag = {
            Kind.ACCESS: (model.online_prediction_logging, "--enable-logging"),
            Kind.CONSOLE: (model.online_prediction_console_logging, "--enable-console-logging"),
        }[kind]
        if not switch and not folder.exists():
            raise FailedPrecondition(
                f"{name.parent} has no {kind} log: only models created with {flag} have one."
            )
        return folder

    def _requests(self, record: VersionRecord) -> Path:
        config = record.version.request_logging_config
        if config is None:
            raise FailedPrecondition(
                f"The requests of {record.name} are not logged. Say where to: `pilotlight versions update "
                f"{record.name.version} --model {record.name.model} --bigquery-table-name WHERE "
                "--sampling-percentage 0.1`."
            )
        address = config.bigquery_table_name
        folder = place(address) or own_folder(self._folder, address)
        if address.startswith("gs://") or (place(address) is None and not folder.exists()):
            raise FailedPrecondition(
                f"The requests of {record.name} are logged to {address}; read them there."
            )
        return folder


def _meant(name: VersionName) -> Callable[[dict[str, Any]], bool]:
    """Several versions may log their requests to the same place."""

    def meant(entry: dict[str, Any]) -> bool:
        return entry.get("model") == name.model and entry.get("model_version") == name.version

    return meant


def _kind(text: str) -> Kind:
    try:
        return Kind(text)
    except ValueError:
        raise InvalidArgument(
            f"Field: kind Error: {text!r} is no log; there are {', '.join(Kind)}.", field="kind"
        ) from None


def _limit(text: str | None) -> int:
    try:
        limit = int(text or _LIMIT)
    except ValueError:
        limit = 0
    if not 1 <= limit <= _MOST:
        raise InvalidArgument(f"Field: limit Error: {text!r} is no number from 1 to {_MOST}.", field="limit")
    return limit


def _since(text: str | None) -> str:
    if not text:
        return ""
    try:
        moment = datetime.datetime.fromisoformat(text)
        return rfc3339((moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp())
    except (ValueError, OverflowError):
        raise InvalidArgument(
            f"Field: since Error: {text!r} is no time like 2030-01-02T03:04:05Z.", field="since"
        ) from None
