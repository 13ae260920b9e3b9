"""`pilotlight logs`."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer

from serving.cli.admin.audit import parse_time
from serving.cli.api_client import ApiClient
from serving.cli.console import print_note
from serving.errors import FailedPrecondition, InvalidArgument
from serving.logs.formatters import escape_control_characters

_POLL_SECONDS = 0.5
_MAX_SHOWN = 120

VersionLogEntry = Mapping[str, Any]


class VersionLogKind(StrEnum):
    REQUESTS = "requests"
    ACCESS = "access"
    CONSOLE = "console"


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


def logs(
    client: ApiClient,
    name: Annotated[str, typer.Argument(metavar="MODEL/VERSION", help="The version.", show_default=False)],
    *,
    kind: Annotated[
        VersionLogKind,
        typer.Option(help="requests: bodies and answers; access: every request; console: what nodes print."),
    ] = VersionLogKind.REQUESTS,
    limit: Annotated[
        int, typer.Option(min=1, max=1000, help="At most this many entries, the last ones.")
    ] = 20,
    since: Annotated[
        Any,
        typer.Option(
            parser=lambda text: parse_time(text, datetime.datetime.now(datetime.UTC)),
            metavar="TIME",
            help="Only from then on: 30m, 12h, 7d ago, or a time like 2030-01-02T03:04:05Z.",
            show_default=False,
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with what comes, until Ctrl-C.", show_default=False)
    ] = False,
    format_: Annotated[
        LogFormat, typer.Option("--format", help="json prints the entries as they are, one per line.")
    ] = LogFormat.TEXT,
) -> None:
    """Show what a version has logged. docs/logging.md tells how its logs are switched on.

    Requests that are logged to a bucket or to BigQuery are read there.

    Example: pilotlight logs flowers/v1 --kind access --follow
    """
    path = f"/logs/{_resolve_version_name(client, name)}"
    query: dict[str, Any] = {"kind": kind.value, "limit": limit}
    query["since"] = None if since is None else since.isoformat()
    try:
        page = client.get_unversioned(path, query)
    except FailedPrecondition as error:
        if kind is VersionLogKind.CONSOLE:
            raise
        hint = f"What its nodes print: pilotlight logs {name} --kind {VersionLogKind.CONSOLE}"
        raise FailedPrecondition(f"{error.message} {hint}") from error
    cursor, entries = page["cursor"], page["entries"]
    # A page has what the server finds in one second; a long log may have earlier entries.
    while len(entries) < limit and (token := page.get("nextPageToken")):
        page = client.get_unversioned(path, {**query, "limit": limit - len(entries), "pageToken": token})
        entries[:0] = page["entries"]
    _print_entries(entries, kind, format_)
    if not entries and not follow:
        others = ", ".join(f"--kind {other}" for other in VersionLogKind if other is not kind)
        print_note(
            f"Nothing{' of that time' if since else ''} is in the {kind} log of {name}. Others: {others}."
        )
    while follow:
        page = client.get_unversioned(path, {"kind": kind.value, "limit": 1000, "cursor": cursor})
        _print_entries(page["entries"], kind, format_)
        cursor, before = page["cursor"], cursor
        if cursor == before:
            time.sleep(_POLL_SECONDS)


def _resolve_version_name(client: ApiClient, name: str) -> str:
    if name.startswith("projects/"):
        return client.resolve_version_name("", name)
    model, _, version = name.partition("/")
    if not version:
        raise InvalidArgument(f"{name} names no version; write MODEL/VERSION.")
    return client.resolve_version_name(model, version)


def _print_entries(entries: Iterable[VersionLogEntry], kind: VersionLogKind, form: LogFormat) -> None:
    for entry in entries:
        if form is LogFormat.JSON:
            print(json.dumps(entry, ensure_ascii=False), flush=True)
        elif kind is VersionLogKind.REQUESTS:
            request, response = _shorten_text(entry["raw_data"]), _shorten_text(entry["raw_prediction"])
            print(f"{_format_time(entry)}  {request}  ->  {response}", flush=True)
        else:
            message = escape_control_characters(entry["message"])
            print(f"{_format_time(entry)}  {entry['severity']:<8} {message}", flush=True)


def _format_time(entry: VersionLogEntry) -> str:
    moment = datetime.datetime.fromisoformat(entry["time"]).astimezone()
    return f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03d}"


def _shorten_text(text: str) -> str:
    line = escape_control_characters(" ".join(text.split()))
    return line if len(line) <= _MAX_SHOWN else f"{line[:_MAX_SHOWN]}…"
