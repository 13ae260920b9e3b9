"""`pilotlight studies`: the commands for studies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from serving.cli.api_client import ApiClient
from serving.cli.command_output import CommandOutput, TableColumns
from serving.cli.commands import resource_commands
from serving.cli.commands.jobs import DEFAULT_REGION
from serving.cli.flags.common_flags import SelectionFlags, parse_file_path
from serving.cli.flags.yaml_file import read_mapping

StudyArgument = Annotated[str, typer.Argument(metavar="STUDY", help="The study.", show_default=False)]

_COLUMNS: TableColumns = {
    "NAME": lambda study: resource_commands.extract_id(study["name"]),
    "STATE": lambda study: str(study.get("state", "")),
    "METRICS": lambda study: ", ".join(
        f"{metric['metric']} ({metric['goal'].lower()})" for metric in study["studyConfig"]["metrics"]
    ),
    "PARAMETERS": lambda study: ", ".join(one["parameter"] for one in study["studyConfig"]["parameters"]),
    "CREATED": lambda study: str(study.get("createTime", "")).removesuffix("Z"),
}


def create_study(
    client: ApiClient,
    output: CommandOutput,
    study: StudyArgument,
    *,
    config: Annotated[
        Any,
        typer.Option(
            parser=parse_file_path,
            metavar="FILE",
            help="YAML or JSON with `metrics`, `parameters`, and if you like `algorithm` and "
            "`automatedStoppingConfig`; - reads standard input.",
            show_default=False,
        ),
    ],
) -> None:
    """Create a study: which parameters to search, for the best of which metrics.

    The file has the fields of the API's StudyConfig:

    \b
    metrics:
    - {metric: loss, goal: MINIMIZE}
    parameters:
    - parameter: rate
      type: DOUBLE
      doubleValueSpec: {minValue: 0.001, maxValue: 1}
      scaleType: UNIT_LOG_SCALE
    - parameter: depth
      type: INTEGER
      integerValueSpec: {minValue: 1, maxValue: 12}
    - parameter: kind
      type: CATEGORICAL
      categoricalValueSpec: {values: [tree, linear]}

    Example: pilotlight studies create flowers --config study.yaml
    """
    name = resolve_study_name(client, study)
    body = _read_config(config)
    parent, _, study_id = name.rpartition("/")
    created = client.call("POST", parent, body, {"studyId": study_id})
    output.report_change(
        f"Created study {study_id}. For the first trial: pilotlight studies suggest {study_id} --client-id "
        "me",
        created,
    )


def describe_study(client: ApiClient, output: CommandOutput, study: StudyArgument) -> None:
    """Show a study: its state, parameters and metrics.

    Example: pilotlight studies describe flowers
    """
    resource_commands.describe_resource(client, output, resolve_study_name(client, study))


def list_studies(client: ApiClient, output: CommandOutput, selection: SelectionFlags) -> None:
    """List the studies of the region (--region, us-central1 when left out).

    Example: pilotlight studies list --filter state:ACTIVE
    """
    found = client.list_resources(f"{_parent(client)}/studies", "studies", {})
    output.show_list(found, _COLUMNS, selection)


def delete_study(client: ApiClient, output: CommandOutput, study: StudyArgument) -> None:
    """Delete a study with all its trials.

    Example: pilotlight studies delete flowers --quiet
    """
    name = resolve_study_name(client, study)
    output.confirm(f"This will delete study {_study_id(name)} and all its trials. Continue?")
    output.report_change(f"Deleted study {_study_id(name)}.", client.call("DELETE", name))


def resolve_study_name(client: ApiClient, study: str) -> str:
    """The full name of a study, given by its id or its full name."""
    return study if study.startswith("projects/") else f"{_parent(client)}/studies/{study}"


def _parent(client: ApiClient) -> str:
    return f"{client.project_name}/locations/{client.region or DEFAULT_REGION}"


def _study_id(name: str) -> str:
    return resource_commands.extract_id(name)


def _read_config(file: Path) -> dict[str, Any]:
    """The study of a file that has it, or only its configuration."""
    content = read_mapping(file, "a StudyConfig, such as `metrics: [{metric: loss}]` and `parameters: [...]`")
    is_study = "studyConfig" in content or "study_config" in content
    return content if is_study else {"studyConfig": content}
