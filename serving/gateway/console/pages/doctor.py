"""Doctor: how this server is, what `pilotlight doctor` finds beside it, and what to do about it."""

from __future__ import annotations

import datetime
import os
from collections import Counter
from typing import Any

from starlette.responses import Response

from serving.gateway.console.text import hide_credentials
from serving.gateway.console.visit import Visit, action, page

# Whoever may see who has which role on the whole server may see what it stands on.
_PERMISSION = "pilotlight.server.getIamPolicy"
_PATH = "/doctor"
_LEVELS = {"fail": "failed", "warn": "warning", "ok": "ok"}


async def show_doctor(visit: Visit) -> Response:
    visit.require(_PERMISSION)
    return visit.render("doctor.html", **_describe_server(visit), **_read_report(visit))


async def show_server(visit: Visit) -> Response:
    """What is true of this process now, as opposed to what the checks find beside it."""
    visit.require(_PERMISSION)
    return visit.render_partial("_doctor_server.html", **_describe_server(visit))


def _describe_server(visit: Visit) -> dict[str, Any]:
    console = visit.console
    config, status, state = console.config, console.server_status, console.read_state()
    host, port = visit.request.scope.get("server") or (config.host, config.port)
    snapshots = [one for record in state.versions.values() if (one := status.get_version(record)) is not None]
    conditions = Counter(one.condition.value for one in snapshots)
    return {
        "readiness": console.get_readiness(),
        "refused_reason": console.write_check.read_trouble(),
        "address": f"{host}:{port}",
        "pid": os.getpid(),
        "state_place": hide_credentials(config.state) or str(config.state_dir / "state.db"),
        "is_access_on": console.access is not None,
        "conditions": sorted(conditions.items()),
        "node_count": sum(len(one.nodes) for one in snapshots),
        "servers": console.list_servers(),
    }


async def show_results(visit: Visit) -> Response:
    visit.require(_PERMISSION)
    values = _read_report(visit)
    return visit.render_partial("_doctor_results.html", done=not values["report"].is_running, **values)


async def show_write_trouble(visit: Visit) -> Response:
    """What every page says at its head while the server refuses changes."""
    return visit.render_partial("_write_trouble.html", write_trouble=visit.console.write_check.read_trouble())


async def start_checks(visit: Visit) -> Response:
    visit.require(_PERMISSION)
    form = await visit.read_form()
    visit.console.health_checks.start(quick=not form.is_checked("frameworks"))
    return visit.redirect(_PATH)


def _read_report(visit: Visit) -> dict[str, Any]:
    """The results, what is wrong first."""
    report = visit.console.health_checks.report
    order = list(_LEVELS)
    started = report.started and datetime.datetime.fromtimestamp(report.started, datetime.UTC).isoformat()
    return {
        "report": report,
        "started": started,
        "results": sorted(report.results, key=lambda result: order.index(result.level)),
        "levels": _LEVELS,
    }


ROUTES = (
    page(_PATH, show_doctor),
    page(f"{_PATH}/server", show_server),
    page(f"{_PATH}/results", show_results),
    action(_PATH, start_checks),
    page("/write-trouble", show_write_trouble),
)
