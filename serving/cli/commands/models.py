"""`pilotlight models`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from serving.cli.api_client import ApiClient
from serving.cli.command_output import CommandOutput, TableColumns
from serving.cli.commands import resource_commands
from serving.cli.flags import common_flags
from serving.cli.flags.common_flags import LabelChangeFlags, ListFlags
from serving.cli.formats.value_parsers import parse_list

_COLUMNS: TableColumns = {
    "NAME": lambda model: resource_commands.extract_id(model["name"]),
    "DEFAULT_VERSION_NAME": lambda model: resource_commands.extract_id(
        model.get("defaultVersion", {}).get("name", "")
    ),
}


def create_model(
    client: ApiClient,
    output: CommandOutput,
    model: common_flags.ModelArgument,
    *,
    regions: Annotated[
        Any, typer.Option(parser=parse_list, metavar="REGION", help="Recorded.", show_default=False)
    ] = None,
    description: common_flags.DescriptionOption = None,
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
    labels: common_flags.LabelsOption = None,
) -> None:
    """Create a model: the name that its versions are served under.

    Example: pilotlight models create flowers --description "Kinds of iris" --labels team=garden
    """
    if regions and client.region:
        raise typer.BadParameter("Give either --region or --regions, not both.")
    if client.region not in {"", "global"}:
        regions = (client.region,)
    parent, _, model_id = client.resolve_model_name(model).rpartition("/")
    body = common_flags.drop_none(
        name=model_id,
        regions=regions,
        description=description,
        labels=common_flags.merge_labels(labels),
        onlinePredictionLogging=enable_logging,
        onlinePredictionConsoleLogging=enable_console_logging,
    )
    output.report_change(f"Created model {model_id}.", client.call("POST", parent, body))


def describe_model(client: ApiClient, output: CommandOutput, model: common_flags.ModelArgument) -> None:
    """Show a model with its default version.

    Example: pilotlight models describe flowers
    """
    resource_commands.describe_resource(client, output, client.resolve_model_name(model))


def list_models(client: ApiClient, output: CommandOutput, listing: ListFlags) -> None:
    """List the models of the project.

    Example: pilotlight models list --filter labels.team=garden
    """
    listing.show_resources(client, output, f"{client.project_name}/models", "models", _COLUMNS)


def update_model(
    client: ApiClient,
    output: CommandOutput,
    model: common_flags.ModelArgument,
    *,
    labels: LabelChangeFlags,
    description: common_flags.DescriptionOption = None,
) -> None:
    """Change a model's description or labels.

    Example: pilotlight models update flowers --update-labels team=roses --description "Roses too"
    """
    current = client.call("GET", client.resolve_model_name(model))
    resource_commands.update_resource(
        client, output, current, resource_commands.build_common_changes(current, description, labels)
    )


def delete_model(client: ApiClient, output: CommandOutput, model: common_flags.ModelArgument) -> None:
    """Delete a model that has no versions.

    Example: pilotlight models delete flowers --quiet
    """
    resource_commands.delete_resource(client, output, client.resolve_model_name(model))
