"""`pilotlight local`."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from serving import config
from serving.cli.instances import Instances
from serving.cli.options import Framework
from serving.cli.output import Output, note
from serving.cli.sources import prepared
from serving.config import NodeConfig
from serving.errors import ModelFailed, ServingError

if TYPE_CHECKING:
    from serving.runtimes import Source


def predict(
    output: Output,
    *,
    model_dir: Annotated[
        str, typer.Option(help="The model folder: gs://BUCKET/PATH or a path.", show_default=False)
    ],
    instances: Instances,
    framework: Annotated[
        Framework | None,
        typer.Option(help="Found out from the files when left out.", show_default=False),
    ] = None,
    prediction_class: Annotated[
        str | None,
        typer.Option(help="A custom prediction routine's class: module.Class.", show_default=False),
    ] = None,
    package_uris: Annotated[
        str | None, typer.Option(metavar="URI,...", help="Archives of user code.", show_default=False)
    ] = None,
) -> None:
    """Get predictions from a model folder, without a server.

    The model is loaded in this process, the way a node would load it.
    Custom prediction routines work too (gcloud refused them).

    Example: pilotlight local predict --model-dir ./flowers --json-instances instances.jsonl
    """
    body = instances.body()
    given = {
        "model_dir": model_dir,
        "framework": framework,
        "prediction_class": prediction_class,
        "package_uris": package_uris,
    }
    # What a model's code prints must not stand among the results.
    with redirect_stdout(sys.stderr), prepared(config.load(NodeConfig, given), note) as source:
        answer = _answer(source, body)
    output.show_predictions(orjson.loads(answer))


def _answer(source: Source, body: bytes) -> bytes:
    """What a node would answer."""
    config.prepare_frameworks()
    from serving.runtimes import load  # noqa: PLC0415  start-up time of the other commands
    from serving.runtimes.codec import Decoder, encode  # noqa: PLC0415

    runtime = load(source)
    for warning in getattr(runtime, "warnings", ()):
        note(f"WARNING: {warning}")
    batch, parameters = Decoder().decode(body, runtime.form)
    try:
        return encode(runtime.predict(batch, **parameters))
    except ServingError:
        raise
    except Exception as error:
        raise ModelFailed(f"{type(error).__name__}: {error}") from error
