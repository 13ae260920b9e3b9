"""`pilotlight predict` and `pilotlight explain`."""

from __future__ import annotations

from typing import Annotated

import typer

from serving.cli.api_client import ApiClient
from serving.cli.command_output import CommandOutput
from serving.cli.flags import common_flags
from serving.cli.flags.instance_flags import InstanceFlags

_VersionOption = Annotated[
    str | None,
    typer.Option("--version", help="The version; the default one when left out.", show_default=False),
]


def explain(
    client: ApiClient,
    output: CommandOutput,
    model: common_flags.ModelOption,
    *,
    instances: InstanceFlags,
    version: _VersionOption = None,
) -> None:
    """Get explanations of predictions, from a server that offers them.

    Pilotlight offers none: its servers refuse with a message that says so. The command is here for scripts
    that are written for gcloud.

    Example: pilotlight explain --model flowers --json-instances instances.jsonl
    """
    name = _resolve_name(client, model, version)
    output.show(client.predict(name, instances.read_body(), verb="explain"))


def predict(
    client: ApiClient,
    output: CommandOutput,
    model: common_flags.ModelOption,
    *,
    instances: InstanceFlags,
    version: _VersionOption = None,
) -> None:
    """Get predictions from a model on the server.

    Objects are shown as a table, other predictions one JSON value per line.
    A file may hold more than 100 instances; --npy is the fast way for many numbers.

    Example: pilotlight predict --model flowers --json-instances instances.jsonl
    """
    name = _resolve_name(client, model, version)
    output.show_predictions(client.predict(name, instances.read_body(), instances.content_type))


def _resolve_name(client: ApiClient, model: str, version: str | None) -> str:
    return (
        client.resolve_model_name(model) if version is None else client.resolve_version_name(model, version)
    )
