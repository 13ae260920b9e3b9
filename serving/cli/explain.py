"""`pilotlight explain`."""

from __future__ import annotations

from typing import Annotated

import typer

from serving.cli import options
from serving.cli.client import Client
from serving.cli.instances import Instances
from serving.cli.output import Output


def explain(
    client: Client,
    output: Output,
    model: options.ModelOption,
    *,
    instances: Instances,
    version: Annotated[
        str | None, typer.Option(help="The version; the default one when left out.", show_default=False)
    ] = None,
) -> None:
    """Get explanations of predictions, from a server that offers them.

    Pilotlight offers none: its servers refuse with a message that says so. The command is here for scripts
    that are written for gcloud.

    Example: pilotlight explain --model flowers --json-instances instances.jsonl
    """
    name = client.model(model) if version is None else client.version(model, version)
    output.show(client.predict(name, instances.body(), verb="explain"))
