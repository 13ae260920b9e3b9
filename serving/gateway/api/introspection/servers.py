"""The servers of the database: `/servers`. Not part of the AI Platform API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from serving.gateway.api.request_io import json_response

if TYPE_CHECKING:  # not imported where there is no database
    from serving.gateway.control.placement.server_placement import ServerView
    from serving.gateway.state.shared.membership import ScalingReport


class ServersApi:
    """`list_servers` has none where the server shares its state with no other."""

    def __init__(self, list_servers: Callable[[], Sequence[ServerView]]) -> None:
        self._list_servers = list_servers

    async def list(self, _: Request) -> Response:
        """`GET /servers`: every server of the database, as this one sees it."""
        return json_response({"servers": [_render_server(view) for view in self._list_servers()]})


def _render_server(view: ServerView) -> dict[str, Any]:
    record = view.record
    return {
        "id": record.id,
        "name": record.name,
        "address": f"{record.host}:{record.port}",
        "folder": record.folder,
        "alive": view.is_alive,
        "starting": record.starting,
        "draining": record.draining,
        "reached": view.is_reached,
        "ageSeconds": round(view.age, 3),
        "memoryBytes": record.memory_bytes,
        "processors": record.processors,
        "load": record.load,
        "weight": record.weight,
        "nodes": record.nodes,
        "requests": record.requests,
        "severalOwners": dict(record.owner_counts),
        **({} if record.scaling is None else {"scaling": _render_scaling(record.scaling)}),
    }


def _render_scaling(report: ScalingReport) -> dict[str, Any]:
    return {
        "wanted": report.wanted,
        "deployment": report.deployment,
        "pods": report.pods,
        "reason": report.reason,
        "error": report.error,
        "summary": report.describe(),
    }
