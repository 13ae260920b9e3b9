"""`pilotlight models`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from serving.cli import options, verbs
from serving.cli.client import ApiClient
from serving.cli.options import LabelChangeFlags, ListFlags
from serving.cli.output import CommandOutput, TableColumns
from serving.cli.parsing import parse_list

_COLUMNS: TableColumns = {
    "NAME": lambda model: verbs.extract_id(model["name"]),
    "DEFAULT_VERSION_NAME": lambda model: verbs.extract_id(model.get("defaultVersion", {}).get("name", "")),
}


def create_model(
    client: ApiClient,
    output: CommandOutput,
    model: options.ModelArgument,
    *,
    regions: Annotated[
        Any, typer.Option(parser=parse_list, metavar="REGION", help="Recorded.", show_default=False)
    ] = None,
    description: options.DescriptionOption = None,
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
    labels: options.LabelsOption = None,
) -> None:
    """Create a model: the name that its versions are served under.

    Example: pilotlight models create flowers --description "Kinds of iris" --labels team=garden
    """
    if regions and client.region:
        raise typer.BadParameter("Give either --region or --regions, not both.")
    if client.region not in {"", "global"}:
        regions = (client.region,)
    parent, _, model_id = client.resolve_model_name(model).rpartition("/")
    body = options.drop_none(
        name=model_id,
        regions=regions,
        description=description,
        labels=options.merge_labels(labels),
        onlinePredictionLogging=enable_logging,
        onlinePredictionConsoleLogging=enable_console_logging,
    )
    output.report_change(f"Created model {model_id}.", client.call("POST", parent, body))


def describe_model(client: ApiClient, output: CommandOutput, model: options.ModelArgument) -> None:
    """Show a model with its default version.

    Example: pilotlight models describe flowers
    """
    verbs.describe_resource(client, output, client.resolve_model_name(model))


def list_models(client: ApiClient, output: CommandOutput, listing: ListFlags) -> None:
    """List the models of the project.

    Example: pilotlight models list --filter labels.team=garden
    """
    listing.show_resources(client, output, f"{client.project}/models", "models", _COLUMNS)


def update_model(
    client: ApiClient,
    output: CommandOutput,
    model: options.ModelArgument,
    *,
    labels: LabelChangeFlags,
    description: options.DescriptionOption = None,
) -> None:
    """Change a model's description or labels.

    Example: pilotlight models update flowers --update-labels team=roses --description "Roses too"
    """
    current = client.call("GET", client.resolve_model_name(model))
    verbs.update_resource(client, output, current, verbs.build_common_changes(current, description, labels))


def delete_model(client: ApiClient, output: CommandOutput, model: options.ModelArgument) -> None:
    """Delete a model that has no versions.

    Example: pilotlight models delete flowers --quiet
    """
    verbs.delete_resource(client, output, client.resolve_model_name(model))
