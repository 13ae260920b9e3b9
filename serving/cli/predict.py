"""`pilotlight predict`."""

from __future__ import annotations

from typing import Annotated

import typer

from serving.cli import options
from serving.cli.client import Client
from serving.cli.instances import Instances
from serving.cli.output import Output


def predict(
    client: Client,
    output: Output,
    model: options.ModelOption,
    *,
    instances: Instances,
    version: Annotated[
        str | None, typer.Option(help="The version; the default one when left out.", show_default=False)
    ] = None,
) -> None:
    """Get predictions from a model on the server.

    Objects are shown as a table, other predictions one JSON value per line.
    A file may hold more than 100 instances; --npy is the fast way for many numbers.

    Example: pilotlight predict --model flowers --json-instances instances.jsonl
    """
    name = client.model(model) if version is None else client.version(model, version)
    output.show_predictions(client.predict(name, instances.body(), instances.content_type))
