"""Doctor: what `pilotlight doctor` finds on this machine, and what to do about it."""

from __future__ import annotations

import datetime
from typing import Any

from starlette.responses import Response

from serving.gateway.console.visit import Visit, action, page

# Whoever may see who has which role on the whole server may see what it stands on.
_PERMISSION = "pilotlight.server.getIamPolicy"
_PATH = "/doctor"
_LEVELS = {"fail": "failed", "warn": "warning", "ok": "ok"}


async def show_doctor(visit: Visit) -> Response:
    visit.require(_PERMISSION)
    return visit.render("doctor.html", **_read_report(visit))


async def show_results(visit: Visit) -> Response:
    visit.require(_PERMISSION)
    values = _read_report(visit)
    return visit.render_partial("_doctor_results.html", done=not values["report"].is_running, **values)


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
    page(f"{_PATH}/results", show_results),
    action(_PATH, start_checks),
)
