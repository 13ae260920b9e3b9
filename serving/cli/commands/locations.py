"""`pilotlight locations`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from serving.cli.api_client import ApiClient
from serving.cli.command_output import CommandOutput, TableColumns
from serving.cli.commands import resource_commands
from serving.cli.flags.common_flags import ListFlags

_COLUMNS: TableColumns = {
    "NAME": lambda location: str(location["name"]),
    "TYPE": lambda location: ", ".join(_collect_capabilities(location, "type")),
    "AVAILABLE_ACCELERATORS": lambda location: ", ".join(
        one for found in _collect_capabilities(location, "availableAccelerators") for one in found
    ),
}


def list_locations(client: ApiClient, output: CommandOutput, listing: ListFlags) -> None:
    """List the locations that a project can use, with what each can do.

    Example: pilotlight locations list
    """
    listing.show_resources(client, output, f"{client.project_name}/locations", "locations", _COLUMNS)


def describe_location(
    client: ApiClient,
    output: CommandOutput,
    location: Annotated[
        str, typer.Argument(metavar="LOCATION", help="The location, such as us-central1.", show_default=False)
    ],
) -> None:
    """Show what a location can do.

    Example: pilotlight locations describe us-central1
    """
    full = location if location.startswith("projects/") else f"{client.project_name}/locations/{location}"
    resource_commands.describe_resource(client, output, full)


def _collect_capabilities(location: Mapping[str, Any], field: str) -> Iterable[Any]:
    return [one[field] for one in location.get("capabilities", ()) if field in one]
