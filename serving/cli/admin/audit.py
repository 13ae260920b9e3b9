"""`pilotlight audit`."""

from __future__ import annotations

import contextlib
import datetime
import json
import re
import time
from collections import deque
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from serving import config
from serving.cli.console import print_note
from serving.config import ServeConfig
from serving.errors import RPC_CODES, NotFound, PermissionDenied

_POLL_SECONDS = 0.5
_TIME_AGO = re.compile(r"(\d+)([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_ROW_FORMAT = "{:<19}  {:<19}  {:<28}  {:<24}  {}"
_STATUS_NAMES = {code: name for name, code in RPC_CODES.items()}

AuditLogEntry = Mapping[str, Any]


class AuditFormat(StrEnum):
    TABLE = "table"
    JSON = "json"


class AuditLogKind(StrEnum):
    ACTIVITY = "activity"
    DATA_ACCESS = "data_access"


def audit(
    *,
    principal: Annotated[
        str, typer.Option(help="Only calls of this one: ann@example.com.", show_default=False)
    ] = "",
    method: Annotated[
        str,
        typer.Option(help="Only methods with this in their name: Delete, CreateModel.", show_default=False),
    ] = "",
    resource: Annotated[
        str,
        typer.Option(help="Only this, and what is below it: models/flowers, projects/p.", show_default=False),
    ] = "",
    since: Annotated[
        Any,
        typer.Option(
            parser=lambda text: parse_time(text, datetime.datetime.now(datetime.UTC)),
            metavar="TIME",
            help="Only from then on: 30m, 12h, 7d ago, or a time like 2030-01-02T03:04:05Z.",
            show_default=False,
        ),
    ] = None,
    kind: Annotated[
        AuditLogKind | None, typer.Option(help="Only one of the two logs.", show_default=False)
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="At most this many entries, the last ones.", show_default=False)
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with what comes, until Ctrl-C.", show_default=False)
    ] = False,
    format_: Annotated[
        AuditFormat, typer.Option("--format", help="json prints the entries as they are, one per line.")
    ] = AuditFormat.TABLE,
    state_dir: Annotated[
        Path | None, typer.Option(help="The server's state folder (setting state_dir).", show_default=False)
    ] = None,
) -> None:
    """Show who did what to which resource, from the audit log in the server's state folder.

    The server need not run. docs/audit.md tells what is recorded and when.

    Example: pilotlight audit --resource models/flowers --since 7d
    """
    from serving.gateway.audit.log_folder import (  # noqa: PLC0415  start-up time
        AuditQuery,
        audit_log_path,
        follow_lines,
    )

    folder = audit_log_path(config.load_config(ServeConfig, {"state_dir": state_dir}).state_dir.expanduser())
    if not folder.is_dir() and not follow:
        raise NotFound(f"There is no audit log in {folder}: nothing was recorded yet, or see --state-dir.")
    query = AuditQuery(principal, method, resource, kind or "", since)
    found = _select_entries(follow_lines(folder, since), query, follow=follow, limit=limit)
    shown = (
        (line for line, _ in found)
        if format_ is AuditFormat.JSON
        else format_rows(entry for _, entry in found)
    )
    try:
        with contextlib.suppress(KeyboardInterrupt):
            for line in shown:
                print(line, flush=follow)
    except PermissionError as error:
        raise PermissionDenied(
            f"You may not read {error.filename}: the audit log is for the user that the server runs as."
        ) from error


def parse_time(text: str, now: datetime.datetime) -> datetime.datetime:
    """A time, or how long ago: `90m`, `2030-01-02T03:04:05Z`."""
    if ago := _TIME_AGO.fullmatch(text):
        return now - datetime.timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is neither like 30m, 12h or 7d nor like 2030-01-02T03:04:05Z."
        ) from None
    return found if found.tzinfo else found.astimezone()


def format_rows(entries: Iterator[AuditLogEntry]) -> Iterator[str]:
    """A heading, then a line per call and one per end of a long-running operation.

    The first entry of an operation is shown only if no later one came: its result is unknown.
    """
    yield _ROW_FORMAT.format("TIME", "RESULT", "PRINCIPAL", "METHOD", "RESOURCE")
    open_calls: dict[str, AuditLogEntry] = {}
    for entry in entries:
        operation = entry.get("operation", {})
        if operation.get("first"):
            open_calls[operation["id"]] = entry
        else:
            open_calls.pop(operation.get("id", ""), None)
            yield _format_row(entry)
    for entry in open_calls.values():
        yield _format_row(entry)


def _select_entries(
    lines: Iterator[bytes | None], query: Any, *, follow: bool, limit: int | None
) -> Iterator[tuple[str, AuditLogEntry]]:
    """The matching lines with their entries; of the lines that exist at the start, the last `limit`."""
    unreadable = 0
    last: deque[tuple[str, AuditLogEntry]] = deque(maxlen=limit)
    for line in lines:
        if line is None:
            yield from last
            last.clear()
            limit = None
            if not follow:
                break
            time.sleep(_POLL_SECONDS)
            continue
        try:
            entry = json.loads(line)
            matches = query.matches(entry)
        except (ValueError, KeyError, TypeError, AttributeError):
            unreadable += 1
            continue
        if not matches:
            continue
        found = line.decode().rstrip("\n"), entry
        if limit is None:
            yield found
        else:
            last.append(found)
    if unreadable:
        print_note(
            f"{unreadable} lines of the log are no entries; a machine that stops may leave part of one."
        )


def _format_row(entry: AuditLogEntry) -> str:
    payload = entry["protoPayload"]
    local = datetime.datetime.fromisoformat(entry["timestamp"]).astimezone()
    return _ROW_FORMAT.format(
        f"{local:%Y-%m-%d %H:%M:%S}",
        _format_result(entry),
        payload["authenticationInfo"].get("principalEmail", "-"),
        payload["methodName"].rpartition(".")[2],
        _replace_unprintable(payload["resourceName"]),
    )


def _format_result(entry: AuditLogEntry) -> str:
    payload, operation = entry["protoPayload"], entry.get("operation", {})
    if "status" not in payload:
        return "UNKNOWN"
    code = payload["status"].get("code", 0)
    if code:
        return _STATUS_NAMES.get(code, str(code))
    # The call was answered, its operation is still running.
    return "OK" if not operation or operation.get("last") else "BEGUN"


def _replace_unprintable(text: str) -> str:
    """The text with `?` for each character that could control a terminal."""
    return "".join(char if char.isprintable() else "?" for char in text)
