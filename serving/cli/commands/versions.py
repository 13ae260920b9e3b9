"""`pilotlight versions`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from serving.cli.api_client import ApiClient, ServerUnreachable
from serving.cli.command_output import CommandOutput, TableColumns
from serving.cli.commands import resource_commands
from serving.cli.console import print_note
from serving.cli.flags import common_flags, yaml_file
from serving.cli.flags.common_flags import LabelChangeFlags, ListFlags, drop_none
from serving.cli.formats.value_parsers import (
    format_choices,
    make_choice_parser,
    merge_pairs,
    parse_list,
    parse_lists,
    parse_pairs,
)
from serving.cli.progress.operation_progress import wait_until_done
from serving.errors import ServingError

_COLUMNS: TableColumns = {
    "NAME": lambda version: resource_commands.extract_id(version["name"]),
    "DEPLOYMENT_URI": lambda version: version.get("deploymentUri", ""),
    "STATE": lambda version: version.get("state", ""),
}
_MAX_PERCENT, _MAX_PORT = 100, 65535
_METRICS = {"cpu-usage": "CPU_USAGE", "gpu-duty-cycle": "GPU_DUTY_CYCLE"}


def parse_metric_targets(texts: Sequence[str] | None) -> list[dict[str, Any]] | None:
    """All `--metric-targets cpu-usage=60` together as the API's list of metrics."""
    flag = "--metric-targets"
    targets = merge_pairs(texts, flag)
    if targets is None:
        return None
    for name, target in targets.items():
        if name not in _METRICS or not target.isdecimal() or int(target) > _MAX_PERCENT:
            text = f"{name}={target} is not one of {'=N, '.join(_METRICS)}=N, with N from 0 to 100."
            raise typer.BadParameter(text, param_hint=flag)
    return [{"name": _METRICS[name], "target": int(target)} for name, target in targets.items()]


def parse_accelerator(text: str) -> dict[str, str]:
    """`type=nvidia-tesla-t4,count=1` as the API has it."""
    parts = parse_pairs(text)
    if "type" not in parts or parts.keys() - {"type", "count"}:
        raise typer.BadParameter("Write it as type=TYPE,count=N.")
    return {"type": parts["type"].upper().replace("-", "_"), "count": parts.get("count", "1")}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCountFlags:
    """The flags that bound the number of nodes."""

    min_nodes: Annotated[
        int | None, typer.Option(min=0, help="Nodes kept without traffic.", show_default=False)
    ] = None
    max_nodes: Annotated[
        int | None, typer.Option(min=0, help="Most nodes under load.", show_default=False)
    ] = None

    def build_fields(self) -> dict[str, Any]:
        return drop_none(minNodes=self.min_nodes, maxNodes=self.max_nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionFlags:
    """The flags that describe a version; they override the fields of the file."""

    origin: Annotated[
        str | None, typer.Option(help="The model folder: gs://BUCKET/PATH or a path.", show_default=False)
    ] = None
    framework: common_flags.FrameworkOption = None
    runtime_version: common_flags.RuntimeVersionOption = None
    python_version: Annotated[str | None, typer.Option(help="Recorded.", show_default=False)] = None
    machine_type: Annotated[
        str | None,
        typer.Option(
            help="Recorded; of n1-... a SavedModel's only output is answered without its name.",
            show_default=False,
        ),
    ] = None
    accelerator: Annotated[
        Any,
        typer.Option(
            parser=parse_accelerator, metavar="type=TYPE,count=N", help="Recorded.", show_default=False
        ),
    ] = None
    metric_targets: Annotated[
        list[str] | None,
        typer.Option(
            metavar="cpu-usage=N,...",
            help="Targets in percent. May be given several times.",
            show_default=False,
        ),
    ] = None
    service_account: Annotated[str | None, typer.Option(help="Recorded.", show_default=False)] = None
    prediction_class: common_flags.PredictionClassOption = None
    prediction_method: common_flags.PredictionMethodOption = None
    package_uris: Annotated[
        Any,
        typer.Option(parser=parse_list, metavar="URI,...", help="Archives of user code.", show_default=False),
    ] = None
    description: common_flags.DescriptionOption = None
    labels: common_flags.LabelsOption = None

    def build_fields(self) -> dict[str, Any]:
        return drop_none(
            deploymentUri=self.origin,
            framework=self.framework and self.framework.upper().replace("-", "_"),
            runtimeVersion=self.runtime_version,
            pythonVersion=self.python_version,
            machineType=self.machine_type,
            acceleratorConfig=self.accelerator,
            serviceAccount=self.service_account,
            predictionClass=self.prediction_class,
            predictionMethod=self.prediction_method,
            packageUris=self.package_uris,
            description=self.description,
            labels=common_flags.merge_labels(self.labels),
        )


class ExplanationMethod(StrEnum):
    """Methods of explanations as gcloud spells them."""

    INTEGRATED_GRADIENTS = "integrated-gradients"
    SAMPLED_SHAPLEY = "sampled-shapley"
    XRAI = "xrai"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplanationFlags:
    """The flags about explanations; servers record them and give none."""

    explanation_method: Annotated[
        Any,
        typer.Option(
            parser=make_choice_parser(ExplanationMethod),
            metavar=format_choices(ExplanationMethod),
            help="Recorded; see `pilotlight explain`.",
            show_default=False,
        ),
    ] = None
    num_integral_steps: Annotated[int, typer.Option(min=1, help="Recorded.")] = 50
    num_paths: Annotated[int, typer.Option(min=1, help="Recorded.")] = 50

    def build_fields(self) -> dict[str, Any]:
        match self.explanation_method:
            case None:
                return {}
            case ExplanationMethod.SAMPLED_SHAPLEY:
                config: dict[str, Any] = {"sampledShapleyAttribution": {"numPaths": self.num_paths}}
            case ExplanationMethod.XRAI:
                config = {"xraiAttribution": {"numIntegralSteps": self.num_integral_steps}}
            case _:
                config = {"integratedGradientsAttribution": {"numIntegralSteps": self.num_integral_steps}}
        return {"explanationConfig": config}


def _repeatable_option(flag: str, metavar: str, text: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=f"{text} May be given several times.", show_default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerFlags:
    """The flags of a version that a container serves, in place of a framework's files."""

    image: Annotated[
        str | None,
        typer.Option(
            help="The image of a container that serves the model, on a server with --container-engine.",
            show_default=False,
        ),
    ] = None
    command: Annotated[
        list[str] | None,
        _repeatable_option("--command", "WORD,...", "What it runs in place of its entrypoint."),
    ] = None
    args: Annotated[
        list[str] | None, _repeatable_option("--args", "WORD,...", "Arguments of its command.")
    ] = None
    env_vars: Annotated[
        list[str] | None, _repeatable_option("--env-vars", "KEY=VALUE,...", "Variables of its environment.")
    ] = None
    ports: Annotated[
        list[str] | None,
        _repeatable_option("--ports", "PORT,...", "Where it listens: the first one counts; 8080."),
    ] = None
    predict_route: Annotated[
        str | None, typer.Option(help="The path that it predicts at.", show_default=False)
    ] = None
    health_route: Annotated[
        str | None, typer.Option(help="The path that it tells its health at.", show_default=False)
    ] = None

    def build_fields(self) -> dict[str, Any]:
        env = merge_pairs(self.env_vars, "--env-vars")
        container = drop_none(
            image=self.image,
            command=self.command and list(parse_lists(self.command)),
            args=self.args and list(parse_lists(self.args)),
            env=env and [{"name": name, "value": value} for name, value in env.items()],
            ports=self.ports and [{"containerPort": _parse_port(text)} for text in parse_lists(self.ports)],
        )
        routes = drop_none(predict=self.predict_route, health=self.health_route)
        return drop_none(container=container or None, routes=routes or None)


def _parse_port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= _MAX_PORT:
        raise typer.BadParameter(f"{text!r} is not a port from 1 to {_MAX_PORT}.", param_hint="--ports")
    return int(text)


def create_version(
    client: ApiClient,
    output: CommandOutput,
    version: common_flags.VersionArgument,
    model: common_flags.ModelOption,
    *,
    new: VersionFlags,
    nodes: NodeCountFlags,
    explanations: ExplanationFlags,
    container: ContainerFlags,
    staging_bucket: Annotated[
        str | None,
        typer.Option(
            metavar="gs://BUCKET",
            help="Not needed: a server reads a local --origin itself, and nothing is uploaded.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            parser=common_flags.parse_file_path,
            metavar="FILE",
            help=f"YAML file with any of {', '.join(yaml_file.CREATE_FIELDS)}. Flags go before it.",
            show_default=False,
        ),
    ] = None,
    asynchronous: Annotated[
        bool, typer.Option("--async", help="Show the operation, do not wait for it.", show_default=False)
    ] = False,
) -> None:
    """Deploy a model folder as a version, and wait until it is ready.

    The first version of a model becomes its default. --framework may be left out.

    Example: pilotlight versions create v1 --model flowers --origin gs://my-bucket/flowers
    """
    name = client.resolve_version_name(model, version)
    parent, _, version_id = name.rpartition("/")
    body = {
        **yaml_file.read_version_file(config, yaml_file.CREATE_FIELDS),
        **new.build_fields(),
        **explanations.build_fields(),
        "name": version_id,
    }
    for field, value in container.build_fields().items():
        body[field] = {**body.get(field, {}), **value}
    if staging_bucket is not None and "://" not in body.get("deploymentUri", "://"):
        print_note(f"--staging-bucket is not needed: the server reads {body['deploymentUri']} itself.")
    scaling = drop_none(metrics=parse_metric_targets(new.metric_targets)) | nodes.build_fields()
    if scaling:
        body["autoScaling"] = {**body.get("autoScaling", {}), **scaling}
    if "deploymentUri" in body:
        body["deploymentUri"] = common_flags.make_absolute(body["deploymentUri"])
    if "packageUris" in body:
        body["packageUris"] = [common_flags.make_absolute(uri) for uri in body["packageUris"]]
    start = time.monotonic()
    operation = client.call("POST", parent, body)
    if asynchronous:
        output.show(operation)
        return
    try:
        response = wait_until_done(client, operation, f"Creating {resource_commands.format_title(name)}")
    except ServerUnreachable:
        raise
    except ServingError:
        print_note(
            f"It stays as FAILED. To try again: pilotlight versions delete {version_id} --model {model}"
        )
        raise
    output.report_change(
        f"Created {resource_commands.format_title(name)} in {time.monotonic() - start:.1f} s.", response
    )


def describe_version(
    client: ApiClient,
    output: CommandOutput,
    version: common_flags.VersionArgument,
    model: common_flags.ModelOption,
) -> None:
    """Show a version, and how it computes its predictions.

    For each number of rows in a call, the fastest strategy serves of those whose answers equal the
    model's own.

    Example: pilotlight versions describe v1 --model flowers
    """
    name = client.resolve_version_name(model, version)
    resource = client.call("GET", name)
    acceleration = client.get_unversioned(f"/acceleration/{name}")
    del acceleration["version"]
    output.show({**resource, "acceleration": acceleration})


def show_schema(
    client: ApiClient,
    output: CommandOutput,
    version: common_flags.VersionArgument,
    model: common_flags.ModelOption,
) -> None:
    """Show what a version takes and answers, with an instance that predicts.

    Example: pilotlight versions schema v1 --model flowers
    """
    output.show(client.call("GET", f"{client.resolve_version_name(model, version)}:schema"))


def list_versions(
    client: ApiClient, output: CommandOutput, model: common_flags.ModelOption, listing: ListFlags
) -> None:
    """List the versions of a model.

    Example: pilotlight versions list --model flowers --filter state:READY
    """
    listing.show_resources(
        client, output, f"{client.resolve_model_name(model)}/versions", "versions", _COLUMNS
    )


def update_version(
    client: ApiClient,
    output: CommandOutput,
    version: common_flags.VersionArgument,
    model: common_flags.ModelOption,
    *,
    labels: LabelChangeFlags,
    nodes: NodeCountFlags,
    description: common_flags.DescriptionOption = None,
    config: Annotated[
        Path | None,
        typer.Option(
            parser=common_flags.parse_file_path,
            metavar="FILE",
            help=f"YAML file with any of {', '.join(yaml_file.UPDATE_FIELDS)}. Flags go before it.",
            show_default=False,
        ),
    ] = None,
    bigquery_table_name: Annotated[
        str | None,
        typer.Option(
            help="Where requests are logged: project.dataset.table, gs://BUCKET/PREFIX or a folder.",
            show_default=False,
        ),
    ] = None,
    sampling_percentage: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="The fraction of requests to log, from 0 to 1.", show_default=False),
    ] = None,
) -> None:
    """Change a version's description, labels, number of nodes or request log.

    Example: pilotlight versions update v1 --model flowers --min-nodes 1 --max-nodes 4
    """
    current = client.call("GET", client.resolve_version_name(model, version))
    fields = yaml_file.read_version_file(config, yaml_file.UPDATE_FIELDS)
    text = fields.get("description") if description is None else description
    changes = resource_commands.build_common_changes(current, text, labels)
    changes |= {f"autoScaling.{key}": value for key, value in fields.get("autoScaling", {}).items()}
    changes |= {f"autoScaling.{key}": value for key, value in nodes.build_fields().items()}
    changes |= {f"manualScaling.{key}": value for key, value in fields.get("manualScaling", {}).items()}
    logging = fields.get("requestLoggingConfig", {}) | drop_none(
        bigqueryTableName=bigquery_table_name, samplingPercentage=sampling_percentage
    )
    if logging:
        changes["requestLoggingConfig"] = {**current.get("requestLoggingConfig", {}), **logging}
    resource_commands.update_resource(client, output, current, changes)


def set_default_version(
    client: ApiClient,
    output: CommandOutput,
    version: common_flags.VersionArgument,
    model: common_flags.ModelOption,
) -> None:
    """Make a version the one that answers predictions addressed to its model.

    Example: pilotlight versions set-default v2 --model flowers
    """
    name = client.resolve_version_name(model, version)
    output.report_change(
        f"The default is now {resource_commands.format_title(name)}.",
        client.call("POST", f"{name}:setDefault", {}),
    )


def delete_version(
    client: ApiClient,
    output: CommandOutput,
    version: common_flags.VersionArgument,
    model: common_flags.ModelOption,
) -> None:
    """Delete a version, its nodes and the server's copy of its files.

    Example: pilotlight versions delete v1 --model flowers --quiet
    """
    resource_commands.delete_resource(client, output, client.resolve_version_name(model, version))
