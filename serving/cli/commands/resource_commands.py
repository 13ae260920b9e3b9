"""Actions that the commands for models and versions share. `name` is always a full resource name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from serving.cli.api_client import ApiClient
from serving.cli.command_output import CommandOutput
from serving.cli.flags.common_flags import LabelChangeFlags
from serving.cli.progress.operation_progress import wait_until_done


def describe_resource(client: ApiClient, output: CommandOutput, name: str) -> None:
    output.show(client.call("GET", name))


def update_resource(
    client: ApiClient, output: CommandOutput, current: Mapping[str, Any], changes: Mapping[str, Any]
) -> None:
    """Patch a resource that was just read; `changes` maps paths of the update mask to new values."""
    if not changes:
        raise typer.BadParameter("Nothing to update: give at least one flag that says what to change.")
    body: dict[str, Any] = {"etag": current.get("etag", "")}
    for path, value in changes.items():
        *outer, last = path.split(".")
        parent = body
        for part in outer:
            parent = parent.setdefault(part, {})
        parent[last] = value
    operation = client.call("PATCH", current["name"], body, {"updateMask": ",".join(changes)})
    response = wait_until_done(client, operation, f"Updating {format_title(current['name'])}")
    output.report_change(f"Updated {format_title(current['name'])}.", response)


def build_common_changes(
    current: Mapping[str, Any], description: str | None, labels: LabelChangeFlags
) -> dict[str, Any]:
    """The changes that every resource has flags for."""
    changes: dict[str, Any] = {}
    if description is not None:
        changes["description"] = description
    if labels:
        changes["labels"] = labels.apply_to(current.get("labels", {}))
    return changes


def delete_resource(client: ApiClient, output: CommandOutput, name: str) -> None:
    """Delete a resource, after asking."""
    output.confirm(f"This will delete {format_title(name)}. Continue?")
    response = wait_until_done(client, client.call("DELETE", name), f"Deleting {format_title(name)}")
    output.report_change(f"Deleted {format_title(name)}.", response)


def format_title(name: str) -> str:
    """A resource in words: `version v1 of model flowers`."""
    _, _, _, model, *rest = name.split("/")
    return f"version {rest[1]} of model {model}" if rest else f"model {model}"


def extract_id(name: str) -> str:
    """The id at the end of a full name."""
    return name.rpartition("/")[2]
