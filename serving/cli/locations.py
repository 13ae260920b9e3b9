"""`pilotlight locations`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from serving.cli import verbs
from serving.cli.client import Client
from serving.cli.options import Listing
from serving.cli.output import Columns, Output

_COLUMNS: Columns = {
    "NAME": lambda location: str(location["name"]),
    "TYPE": lambda location: ", ".join(_each(location, "type")),
    "AVAILABLE_ACCELERATORS": lambda location: ", ".join(
        one for found in _each(location, "availableAccelerators") for one in found
    ),
}


def list_(client: Client, output: Output, listing: Listing) -> None:
    """List the locations that a project can use, with what each can do.

    Example: pilotlight locations list
    """
    listing.show(client, output, f"{client.project}/locations", "locations", _COLUMNS)


def describe(
    client: Client,
    output: Output,
    location: Annotated[
        str, typer.Argument(metavar="LOCATION", help="The location, such as us-central1.", show_default=False)
    ],
) -> None:
    """Show what a location can do.

    Example: pilotlight locations describe us-central1
    """
    full = location if location.startswith("projects/") else f"{client.project}/locations/{location}"
    verbs.describe(client, output, full)


def _each(location: Mapping[str, Any], field: str) -> Iterable[Any]:
    return [one[field] for one in location.get("capabilities", ()) if field in one]
