"""`pilotlight versions`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from serving.cli import options, verbs, version_file
from serving.cli.client import Client, Unreachable
from serving.cli.lines import note
from serving.cli.options import Framework, LabelChanges, Listing, given
from serving.cli.output import Columns, Output
from serving.cli.progress import wait
from serving.errors import ServingError

_COLUMNS: Columns = {
    "NAME": lambda version: verbs.bare(version["name"]),
    "DEPLOYMENT_URI": lambda version: version.get("deploymentUri", ""),
    "STATE": lambda version: version.get("state", ""),
}
_METRICS = {"cpu-usage": "CPU_USAGE", "gpu-duty-cycle": "GPU_DUTY_CYCLE"}


def metric_targets(text: str) -> list[dict[str, Any]]:
    """`cpu-usage=60` as the API's list of metrics."""
    targets = options.pairs(text)
    for name, target in targets.items():
        if name not in _METRICS or not target.isdecimal():
            raise typer.BadParameter(f"{name}={target} is not one of {'=N, '.join(_METRICS)}=N.")
    return [{"name": _METRICS[name], "target": int(target)} for name, target in targets.items()]


def accelerator(text: str) -> dict[str, str]:
    """`type=nvidia-tesla-t4,count=1` as the API has it."""
    parts = options.pairs(text)
    if "type" not in parts or parts.keys() - {"type", "count"}:
        raise typer.BadParameter("Write it as type=TYPE,count=N.")
    return {"type": parts["type"].upper().replace("-", "_"), "count": parts.get("count", "1")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """The flags that bound the number of nodes."""

    min_nodes: Annotated[
        int | None, typer.Option(min=0, help="Nodes kept without traffic.", show_default=False)
    ] = None
    max_nodes: Annotated[
        int | None, typer.Option(min=0, help="Most nodes under load.", show_default=False)
    ] = None

    def fields(self) -> dict[str, Any]:
        """Fields of autoScaling."""
        return given(minNodes=self.min_nodes, maxNodes=self.max_nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewVersion:
    """The flags that describe a version; they go before what the file says."""

    origin: Annotated[
        str | None, typer.Option(help="The model folder: gs://BUCKET/PATH or a path.", show_default=False)
    ] = None
    framework: Annotated[
        Framework | None,
        typer.Option(help="Found out from the files when left out.", show_default=False),
    ] = None
    runtime_version: Annotated[
        str | None,
        typer.Option(
            help="What the model was made for; `pilotlight runtimes` has which interpreter then computes it.",
            show_default=False,
        ),
    ] = None
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
        typer.Option(parser=accelerator, metavar="type=TYPE,count=N", help="Recorded.", show_default=False),
    ] = None
    metric_targets: Annotated[
        Any,
        typer.Option(
            parser=metric_targets, metavar="cpu-usage=N,...", help="Targets in percent.", show_default=False
        ),
    ] = None
    service_account: Annotated[str | None, typer.Option(help="Recorded.", show_default=False)] = None
    prediction_class: Annotated[
        str | None,
        typer.Option(help="A custom prediction routine's class: module.Class.", show_default=False),
    ] = None
    package_uris: Annotated[
        Any,
        typer.Option(
            parser=options.items, metavar="URI,...", help="Archives of user code.", show_default=False
        ),
    ] = None
    description: options.Description = None
    labels: options.Labels = None

    def fields(self) -> dict[str, Any]:
        """Fields of a version."""
        return given(
            deploymentUri=self.origin,
            framework=self.framework and self.framework.upper().replace("-", "_"),
            runtimeVersion=self.runtime_version,
            pythonVersion=self.python_version,
            machineType=self.machine_type,
            acceleratorConfig=self.accelerator,
            serviceAccount=self.service_account,
            predictionClass=self.prediction_class,
            packageUris=self.package_uris,
            description=self.description,
            labels=self.labels,
        )


def create(
    client: Client,
    output: Output,
    version: options.VersionArgument,
    model: options.ModelOption,
    *,
    new: NewVersion,
    nodes: Nodes,
    config: Annotated[
        Path | None,
        typer.Option(
            parser=options.readable,
            metavar="FILE",
            help=f"YAML file with any of {', '.join(version_file.FOR_CREATE)}. Flags go before it.",
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
    name = client.version(model, version)
    parent, _, version_id = name.rpartition("/")
    body = {**version_file.read(config, version_file.FOR_CREATE), **new.fields(), "name": version_id}
    scaling = given(metrics=new.metric_targets) | nodes.fields()
    if scaling:
        body["autoScaling"] = {**body.get("autoScaling", {}), **scaling}
    if "deploymentUri" in body:
        body["deploymentUri"] = options.absolute(body["deploymentUri"])
    if "packageUris" in body:
        body["packageUris"] = [options.absolute(uri) for uri in body["packageUris"]]
    start = time.monotonic()
    operation = client.call("POST", parent, body)
    if asynchronous:
        output.show(operation)
        return
    try:
        response = wait(client, operation, f"Creating {verbs.title(name)}")
    except Unreachable:
        raise
    except ServingError:
        note(f"It stays as FAILED. To try again: pilotlight versions delete {version_id} --model {model}")
        raise
    output.done(f"Created {verbs.title(name)} in {time.monotonic() - start:.1f} s.", response)


def describe(
    client: Client, output: Output, version: options.VersionArgument, model: options.ModelOption
) -> None:
    """Show a version, and how it computes its predictions.

    For each number of rows in a call, the way that serves is the fastest of those that gave the model's own
    answers.

    Example: pilotlight versions describe v1 --model flowers
    """
    name = client.version(model, version)
    resource = client.call("GET", name)
    ways = client.look(f"/acceleration/{name}")
    del ways["version"]
    output.show({**resource, "acceleration": ways})


def schema(
    client: Client, output: Output, version: options.VersionArgument, model: options.ModelOption
) -> None:
    """Show what a version takes and answers, with an instance that predicts.

    Example: pilotlight versions schema v1 --model flowers
    """
    output.show(client.call("GET", f"{client.version(model, version)}:schema"))


def list_(client: Client, output: Output, model: options.ModelOption, listing: Listing) -> None:
    """List the versions of a model.

    Example: pilotlight versions list --model flowers --filter state:READY
    """
    output.show_list(listing.fetch(client, f"{client.model(model)}/versions", "versions"), _COLUMNS)


def update(
    client: Client,
    output: Output,
    version: options.VersionArgument,
    model: options.ModelOption,
    *,
    labels: LabelChanges,
    nodes: Nodes,
    description: options.Description = None,
    config: Annotated[
        Path | None,
        typer.Option(
            parser=options.readable,
            metavar="FILE",
            help=f"YAML file with any of {', '.join(version_file.FOR_UPDATE)}. Flags go before it.",
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
    current = client.call("GET", client.version(model, version))
    fields = version_file.read(config, version_file.FOR_UPDATE)
    text = fields.get("description") if description is None else description
    changes = verbs.common_changes(current, text, labels)
    changes |= {f"autoScaling.{key}": value for key, value in fields.get("autoScaling", {}).items()}
    changes |= {f"autoScaling.{key}": value for key, value in nodes.fields().items()}
    changes |= {f"manualScaling.{key}": value for key, value in fields.get("manualScaling", {}).items()}
    logging = fields.get("requestLoggingConfig", {}) | given(
        bigqueryTableName=bigquery_table_name, samplingPercentage=sampling_percentage
    )
    if logging:
        changes["requestLoggingConfig"] = {**current.get("requestLoggingConfig", {}), **logging}
    verbs.update(client, output, current, changes)


def set_default(
    client: Client, output: Output, version: options.VersionArgument, model: options.ModelOption
) -> None:
    """Make a version the one that answers predictions addressed to its model.

    Example: pilotlight versions set-default v2 --model flowers
    """
    name = client.version(model, version)
    output.done(f"The default is now {verbs.title(name)}.", client.call("POST", f"{name}:setDefault", {}))


def delete(
    client: Client, output: Output, version: options.VersionArgument, model: options.ModelOption
) -> None:
    """Delete a version, its nodes and the server's copy of its files.

    Example: pilotlight versions delete v1 --model flowers --quiet
    """
    verbs.delete(client, output, client.version(model, version))
