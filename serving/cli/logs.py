"""`pilotlight logs`."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer

from serving.cli.audit import moment
from serving.cli.client import Client
from serving.cli.lines import note
from serving.errors import FailedPrecondition, InvalidArgument
from serving.log_lines import escape_control_characters

_EVERY = 0.5
_MAX_SHOWN = 120

Entry = Mapping[str, Any]


class Kind(StrEnum):
    """The logs of a version."""

    REQUESTS = "requests"
    ACCESS = "access"
    CONSOLE = "console"


class Format(StrEnum):
    """How entries are written."""

    TEXT = "text"
    JSON = "json"


def logs(
    client: Client,
    name: Annotated[str, typer.Argument(metavar="MODEL/VERSION", help="The version.", show_default=False)],
    *,
    kind: Annotated[
        Kind,
        typer.Option(help="requests: bodies and answers; access: every request; console: what nodes print."),
    ] = Kind.REQUESTS,
    limit: Annotated[
        int, typer.Option(min=1, max=1000, help="At most this many entries, the last ones.")
    ] = 20,
    since: Annotated[
        Any,
        typer.Option(
            parser=lambda text: moment(text, datetime.datetime.now(datetime.UTC)),
            metavar="TIME",
            help="Only from then on: 30m, 12h, 7d ago, or a time like 2030-01-02T03:04:05Z.",
            show_default=False,
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with what comes, until Ctrl-C.", show_default=False)
    ] = False,
    format_: Annotated[
        Format, typer.Option("--format", help="json prints the entries as they are, one per line.")
    ] = Format.TEXT,
) -> None:
    """Show what a version has logged. docs/logging.md tells how its logs are switched on.

    Requests that are logged to a bucket or to BigQuery are read there.

    Example: pilotlight logs flowers/v1 --kind access --follow
    """
    path = f"/logs/{_full(client, name)}"
    query: dict[str, Any] = {"kind": kind.value, "limit": limit}
    query["since"] = None if since is None else since.isoformat()
    try:
        page = client.look(path, query)
    except FailedPrecondition as error:
        if kind is Kind.CONSOLE:
            raise
        hint = f"What its nodes print: pilotlight logs {name} --kind {Kind.CONSOLE}"
        raise FailedPrecondition(f"{error.message} {hint}") from error
    cursor, entries = page["cursor"], page["entries"]
    # An answer has what the server has found in a second; of a long log there may be more before that.
    while len(entries) < limit and (token := page.get("nextPageToken")):
        page = client.look(path, {**query, "limit": limit - len(entries), "pageToken": token})
        entries[:0] = page["entries"]
    _print(entries, kind, format_)
    if not entries and not follow:
        others = ", ".join(f"--kind {other}" for other in Kind if other is not kind)
        note(f"Nothing{' of that time' if since else ''} is in the {kind} log of {name}. Others: {others}.")
    while follow:
        page = client.look(path, {"kind": kind.value, "limit": 1000, "cursor": cursor})
        _print(page["entries"], kind, format_)
        cursor, before = page["cursor"], cursor
        if cursor == before:
            time.sleep(_EVERY)


def _full(client: Client, name: str) -> str:
    if name.startswith("projects/"):
        return client.version("", name)
    model, _, version = name.partition("/")
    if not version:
        raise InvalidArgument(f"{name} names no version; write MODEL/VERSION.")
    return client.version(model, version)


def _print(entries: Iterable[Entry], kind: Kind, form: Format) -> None:
    for entry in entries:
        if form is Format.JSON:
            print(json.dumps(entry, ensure_ascii=False), flush=True)
        elif kind is Kind.REQUESTS:
            asked, answered = _short(entry["raw_data"]), _short(entry["raw_prediction"])
            print(f"{_local(entry)}  {asked}  ->  {answered}", flush=True)
        else:
            print(
                f"{_local(entry)}  {entry['severity']:<8} {escape_control_characters(entry['message'])}",
                flush=True,
            )


def _local(entry: Entry) -> str:
    moment = datetime.datetime.fromisoformat(entry["time"]).astimezone()
    return f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03d}"


def _short(text: str) -> str:
    line = escape_control_characters(" ".join(text.split()))
    return line if len(line) <= _MAX_SHOWN else f"{line[:_MAX_SHOWN]}…"
