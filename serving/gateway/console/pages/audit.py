"""Audit: the audit log, newest first."""

from __future__ import annotations

import datetime
import re
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from serving.errors import RPC_CODES, InvalidArgument, Unavailable
from serving.gateway.audit.log_folder import AuditEntry, AuditQuery, audit_log_path
from serving.gateway.audit.log_reader import AuditPosition, read_newest
from serving.gateway.console.visit import Visit, page
from serving.gateway.thread_pool import ThreadPool

_PATH = "/audit"
_PAGE_SIZE = 100
# A page that finds too little in so much says so, and leads on.
_MAX_BYTES = 8 << 20
_PERIODS = (
    ("", "any time"),
    ("1", "the last hour"),
    ("24", "the last day"),
    ("168", "the last 7 days"),
    ("720", "the last 30 days"),
)
# Who is told of in place of a principal.
_ANYBODY, _UNKNOWN = "anyone", "somebody without a valid token"
# In front of what is wrong with a field, for programs.
_FIELD = re.compile(r"^Field: \S+ Error: ")
_STATUS_NAMES = {code: name for name, code in RPC_CODES.items()}
# One at a time: whoever reads the log must not take the server's processors.
_THREAD = ThreadPool("audit pages", 1, queue=20)


async def show_audit(visit: Visit) -> Response:
    """Of the whole server to those who may see its policy, of the project to others."""
    project = ""
    if not visit.may("pilotlight.server.getIamPolicy"):
        visit.require("pilotlight.projects.getIamPolicy", project=visit.project)
        project = f"projects/{visit.project}"
    given = visit.query
    query = AuditQuery(
        principal=given.get("principal", "").strip(),
        method=given.get("method", "").strip(),
        resource=given.get("resource", "").strip(),
        since=_parse_period(given.get("period", "")),
        project=project,
    )
    folder = audit_log_path(visit.console.config.state_dir)
    try:
        found = await _THREAD.run(
            read_newest, folder, query, _parse_position(given), most=_PAGE_SIZE, max_bytes=_MAX_BYTES
        )
    except OSError as error:
        raise Unavailable(f"The audit log in {folder} cannot be read: {error.strerror}.") from error
    kept = {key: value for key, value in given.items() if key not in ("position", "until") and value}
    return visit.render(
        "audit.html",
        rows=[_build_row(entry) for entry in found.entries],
        query=given,
        periods=_PERIODS,
        only_project=project,
        is_access_on=visit.console.access is not None,
        is_cut=found.is_cut,
        next_query=found.next_position and urlencode({**kept, "position": str(found.next_position)}),
    )


def _parse_period(text: str) -> datetime.datetime | None:
    if not text.isdecimal() or len(text) > 6:
        return None
    return datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=int(text))


def _parse_position(given: Any) -> AuditPosition | None:
    """Where the page begins: that of the page before, or the end of a day."""
    try:
        if position := given.get("position", ""):
            return AuditPosition.parse(position)
        if until := given.get("until", ""):
            return AuditPosition(datetime.date.fromisoformat(until) + datetime.timedelta(days=1), 0)
    except (ValueError, OverflowError) as error:
        raise InvalidArgument("That is no day: write YYYY-MM-DD.", field="until") from error
    return None


def _build_row(entry: AuditEntry) -> dict[str, Any]:
    payload, operation = entry["protoPayload"], entry.get("operation", {})
    code = payload.get("status", {}).get("code", 0)
    if "status" not in payload:
        result = "UNKNOWN"
    elif code:
        result = _STATUS_NAMES.get(code, str(code))
    else:
        # The call was answered; what it began goes on.
        result = "OK" if not operation or operation.get("last") else "BEGUN"
    return {
        "time": entry["timestamp"],
        "result": result,
        "is_error": bool(code) and result != "CANCELLED",
        "message": _FIELD.sub("", payload.get("status", {}).get("message", "")),
        "principal": payload["authenticationInfo"].get("principalEmail", ""),
        "nobody": _UNKNOWN if result == "UNAUTHENTICATED" else _ANYBODY,
        "method": payload["methodName"].rpartition(".")[2],
        "resource": payload["resourceName"],
        "entry": entry,
    }


ROUTES = (page(_PATH, show_audit),)
