"""`pilotlight models`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from serving.cli import options, verbs
from serving.cli.client import Client
from serving.cli.options import LabelChanges, Listing
from serving.cli.output import Columns, Output
from serving.cli.parsing import items

_COLUMNS: Columns = {
    "NAME": lambda model: verbs.bare(model["name"]),
    "DEFAULT_VERSION_NAME": lambda model: verbs.bare(model.get("defaultVersion", {}).get("name", "")),
}


def create(
    client: Client,
    output: Output,
    model: options.ModelArgument,
    *,
    regions: Annotated[
        Any, typer.Option(parser=items, metavar="REGION", help="Recorded.", show_default=False)
    ] = None,
    description: options.Description = None,
    enable_logging: Annotated[
        bool,
        typer.Option("--enable-logging", help="Log each prediction: when, and how long.", show_default=False),
    ] = False,
    enable_console_logging: Annotated[
        bool,
        typer.Option(
            "--enable-console-logging", help="Log what nodes print; see docs/logging.md.", show_default=False
        ),
    ] = False,
    labels: options.Labels = None,
) -> None:
    """Create a model: the name that its versions are served under.

    Example: pilotlight models create flowers --description "Kinds of iris" --labels team=garden
    """
    if regions and client.region:
        raise typer.BadParameter("Give either --region or --regions, not both.")
    if client.region not in {"", "global"}:
        regions = (client.region,)
    parent, _, model_id = client.model(model).rpartition("/")
    body = options.given(
        name=model_id,
        regions=regions,
        description=description,
        labels=options.merged_labels(labels),
        onlinePredictionLogging=enable_logging,
        onlinePredictionConsoleLogging=enable_console_logging,
    )
    output.done(f"Created model {model_id}.", client.call("POST", parent, body))


def describe_model(client: Client, output: Output, model: options.ModelArgument) -> None:
    """Show a model with its default version.

    Example: pilotlight models describe flowers
    """
    verbs.describe(client, output, client.model(model))


def list_(client: Client, output: Output, listing: Listing) -> None:
    """List the models of the project.

    Example: pilotlight models list --filter labels.team=garden
    """
    listing.show(client, output, f"{client.project}/models", "models", _COLUMNS)


def update(
    client: Client,
    output: Output,
    model: options.ModelArgument,
    *,
    labels: LabelChanges,
    description: options.Description = None,
) -> None:
    """Change a model's description or labels.

    Example: pilotlight models update flowers --update-labels team=roses --description "Roses too"
    """
    current = client.call("GET", client.model(model))
    verbs.update(client, output, current, verbs.common_changes(current, description, labels))


def delete(client: Client, output: Output, model: options.ModelArgument) -> None:
    """Delete a model that has no versions.

    Example: pilotlight models delete flowers --quiet
    """
    verbs.delete(client, output, client.model(model))
