"""Why requests waited: `GET /waits/…`. Not part of the AI Platform API."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from serving.gateway.api.request_io import json_response, version_name
from serving.gateway.catalog.lookup import get_version
from serving.gateway.observability.wait_recorder import RecordedWait, WaitRecorder, describe_wait
from serving.gateway.state.catalog_state import CatalogState

Json = dict[str, Any]

_MS_PER_SECOND = 1000


class VersionWaitsApi:
    def __init__(self, recorder: WaitRecorder, read_state: Callable[[], CatalogState]) -> None:
        self._recorder = recorder
        self._read_state = read_state

    async def get(self, request: Request) -> Response:
        """`GET /waits/…/versions/V`: the last requests that waited for a node, or took long, newest first."""
        record = get_version(self._read_state(), version_name(request))
        waits = [render_wait(one) for one in self._recorder.list_waits(record.uid)]
        return json_response({"version": str(record.name), "waits": waits})


def render_wait(wait: RecordedWait) -> Json:
    moment = datetime.datetime.fromtimestamp(wait.at, datetime.UTC)
    return {
        "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "requestId": wait.request_id,
        "status": wait.status,
        "ms": _render_duration(wait.seconds),
        "phasesMs": {name: _render_duration(seconds) for name, seconds in wait.phases.items()},
        "summary": describe_wait(wait),
    }


def _render_duration(seconds: float) -> float:
    return round(seconds * _MS_PER_SECOND, 1)
