"""What a version did in the last minutes, hours or day: `GET /history/…`. Not part of the AI Platform API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from serving.errors import InvalidArgument
from serving.gateway.api.request_io import json_response, version_name
from serving.gateway.catalog.lookup import get_version
from serving.gateway.observability.history import WINDOWS, Figures, Grain
from serving.gateway.observability.history_recorder import HistoryRecorder
from serving.gateway.state.catalog_state import CatalogState

Json = dict[str, Any]

_MS_PER_SECOND = 1000


class VersionHistoryApi:
    def __init__(self, recorder: HistoryRecorder, read_state: Callable[[], CatalogState]) -> None:
        self._recorder = recorder
        self._read_state = read_state

    async def get(self, request: Request) -> Response:
        """`GET /history/…/versions/V?window=10m`: figures for each second, minute or half hour."""
        record = get_version(self._read_state(), version_name(request))
        window = request.query_params.get("window", "10m")
        grain = WINDOWS.get(window)
        if grain is None:
            raise InvalidArgument(f'The query parameter "window" must be one of {", ".join(WINDOWS)}.')
        start, figures = self._recorder.read_figures(record.uid, grain)
        return json_response(
            {"version": str(record.name), "window": window, **_render_figures(start, grain, figures)}
        )


def _render_figures(start: int, grain: Grain, figures: list[Figures]) -> Json:
    return {
        "firstEnd": start,
        "grainSeconds": grain.seconds,
        "requests": [round(one.requests) for one in figures],
        "errors": [round(one.errors) for one in figures],
        "p50Ms": [_render_latency(one.p50) for one in figures],
        "p99Ms": [_render_latency(one.p99) for one in figures],
        "nodes": [round(one.nodes) for one in figures],
    }


def _render_latency(seconds: float) -> float | None:
    return round(seconds * _MS_PER_SECOND, 1) if seconds else None
