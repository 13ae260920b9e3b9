"""How a version computes its predictions: `GET /acceleration/…`. Not part of the AI Platform API."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from serving import acceleration_record
from serving.acceleration_record import PLAIN_STRATEGY, AccelerationRecord, DamagedRecordError, RowRange
from serving.gateway.api.request_io import json_response, version_name
from serving.gateway.catalog.lookup import get_version
from serving.gateway.control.deployment import VersionDeployer
from serving.gateway.state.catalog_state import CatalogState
from serving.gateway.state.records import VersionRecord
from serving.gateway.thread_pool import ThreadPool

Json = dict[str, Any]

_QUEUE = 31

_SWITCHED_OFF = "It is switched off (setting acceleration)."
_USER_CODE = "Nothing is known of the faster ways of user code."
_UNKNOWN = "The model has not been studied yet; a node does it in the background."
_OTHER_MACHINE = "The model was studied with other libraries or on another processor; a node does it again."
_NO_GAIN = "No other way was proven and faster."
_WITHDRAWN = "A faster way was wrong for a request: {}"


class AccelerationApi:
    def __init__(self, deployment: VersionDeployer, read_state: Callable[[], CatalogState]) -> None:
        self._deployment = deployment
        self._read_state = read_state
        self._threads = ThreadPool("acceleration", 1, queue=_QUEUE)

    async def get(self, request: Request) -> Response:
        """`GET /acceleration/…/versions/V`: the strategy for each number of rows, and its speedup."""
        record = get_version(self._read_state(), version_name(request))
        return json_response(await self._threads.run(self._render_acceleration, record))

    def _render_acceleration(self, record: VersionRecord) -> Json:
        location = self._deployment.locate_acceleration_record(record)
        verdict, reason = None, ""
        if location is None:
            reason = _USER_CODE if self._deployment.is_acceleration_enabled else _SWITCHED_OFF
        else:
            try:
                verdict = acceleration_record.read_record(Path(location.folder))
            except DamagedRecordError as error:
                reason = str(error)
            else:
                reason = _explain_plain_path(verdict, location.key)
        serves = not reason
        rendered: Json = {
            "version": str(record.name),
            "way": _join_strategies(verdict) if serves else PLAIN_STRATEGY,
        }
        if reason:
            rendered["reason"] = reason
        if verdict is not None:
            rendered["ranges"] = [_render_range(one) for one in verdict.ranges]
            rendered["refused"] = [
                {"way": one.name, "reason": one.refused} for one in verdict.tried if one.refused
            ]
            rendered["studySeconds"] = verdict.seconds
        return rendered


def _explain_plain_path(verdict: AccelerationRecord | None, key: acceleration_record.AccelerationKey) -> str:
    """Return why the reference path serves, "" if a faster one does."""
    if verdict is None:
        return _UNKNOWN
    if verdict.key != key:
        return _OTHER_MACHINE
    if verdict.withdrawn:
        return _WITHDRAWN.format(verdict.withdrawn)
    return verdict.failure or ("" if verdict.is_accelerated else _NO_GAIN)


def _join_strategies(verdict: AccelerationRecord | None) -> str:
    """The strategies that serve, the one for single rows first."""
    ranges = () if verdict is None else verdict.ranges
    return ", ".join(dict.fromkeys(one.way for one in ranges))


def _render_range(one: RowRange) -> Json:
    return {
        "rows": one.rows,
        "way": one.way,
        "milliseconds": round(one.seconds * 1e3, 4),
        "plainMilliseconds": round(one.plain_seconds * 1e3, 4),
        "gain": round(one.plain_seconds / one.seconds, 1) if one.seconds else None,
    }
