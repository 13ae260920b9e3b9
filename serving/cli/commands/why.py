"""`pilotlight why`."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from serving.cli.api_client import ApiClient
from serving.cli.command_output import CommandOutput
from serving.cli.commands import resource_commands
from serving.cli.commands.nodes import format_duration
from serving.cli.formats.printers import print_table
from serving.logs.formatters import escape_control_characters

Json = Mapping[str, Any]


def why(
    client: ApiClient,
    output: CommandOutput,
    name: Annotated[
        str,
        typer.Argument(
            metavar="MODEL[/VERSION]",
            help="The version, or the model if its default version is meant.",
            show_default=False,
        ),
    ],
    *,
    limit: Annotated[int, typer.Option(min=1, help="At most this many decisions, and refusals.")] = 20,
) -> None:
    """Tell why a version has the nodes it has, and why requests were refused.

    Example: pilotlight why flowers/v1
    """
    status = client.get_unversioned(f"/why/{_resolve_name(client, name)}")
    if output.format is not None:
        output.show(status)
        return
    for line in _describe_status(status):
        print(escape_control_characters(line))
    _print_table(
        "What was decided, newest last:",
        ("TIME", "NODES", "WHY"),
        [(one["nodes"], one["reason"], one["time"]) for one in status.get("decisions", ())][-limit:],
    )
    _print_table(
        "Requests that were refused:",
        ("TIME", "HOW_MANY", "WHY"),
        [(one["count"], one["reason"], one["time"]) for one in status.get("refusals", ())][-limit:],
    )


def _resolve_name(client: ApiClient, name: str) -> str:
    if name.startswith("projects/"):
        return client.resolve_model_name(name)
    model, _, version = name.partition("/")
    return client.resolve_version_name(model, version) if version else client.resolve_model_name(model)


def _describe_status(status: Json) -> Iterator[str]:
    """The present status, a sentence or two per line."""
    yield f"{_capitalize_first(resource_commands.format_title(status['version']))}. {status['summary']}"
    if status.get("reason") and status["state"] != "failing":
        yield f"Last decision: {status['reason']}."
    if starts := status.get("startSeconds"):
        known = " or ".join(f"{format_duration(seconds)} ({how})" for how, seconds in starts.items())
        yield f"A node takes about {known} to start."
    if failures := status.get("failures"):
        yield from _describe_failures(failures)
    for warning in status.get("warnings", ()):
        yield f"Warning: {warning}"
    if server := status.get("server"):
        yield _describe_scope(server, status.get("owners", ()))


def _describe_scope(server: str, owners: Sequence[str]) -> str:
    """Whose view it is, of several servers, and who has the version's nodes."""
    told = f"This is what {server} alone knows and has decided."
    return f"{told} The version is placed on {' and '.join(owners)}." if owners else told


def _describe_failures(failures: Json) -> Iterator[str]:
    count, wait = failures["count"], failures["nextTrySeconds"]
    times = "Once" if count == 1 else f"{count} times in a row"
    yield f"{times} a node could not start. {failures['reason']}"
    yield f"The next try is in {format_duration(wait)}." if wait else "The next try is not held back."


def _print_table(title: str, headings: tuple[str, str, str], rows: list[tuple[int, str, str]]) -> None:
    if rows:
        print(f"\n{title}")
        print_table(headings, [(_format_time(time), str(count), reason) for count, reason, time in rows])


def _format_time(timestamp: str) -> str:
    """A time in the local time zone; with the date, unless that is today."""
    moment = datetime.datetime.fromisoformat(timestamp).astimezone()
    today = datetime.datetime.now(moment.tzinfo).date()
    return f"{moment:%H:%M:%S}" if moment.date() == today else f"{moment:%Y-%m-%d %H:%M:%S}"


def _capitalize_first(text: str) -> str:
    return text[:1].upper() + text[1:]
