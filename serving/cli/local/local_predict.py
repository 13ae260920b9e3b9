"""`pilotlight local predict`."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

import orjson

from serving import config
from serving.cli.command_output import CommandOutput
from serving.cli.console import print_note, print_warning
from serving.cli.flags.common_flags import LocalModelFlags, ModelDirOption
from serving.cli.flags.instance_flags import InstanceFlags
from serving.cli.model_source import prepare_model
from serving.config import NodeConfig
from serving.errors import ModelFailed, ServingError
from serving.http_headers import NPY

if TYPE_CHECKING:
    from serving.runtimes import LoadSpec


def predict_locally(
    output: CommandOutput,
    model_dir: ModelDirOption,
    *,
    instances: InstanceFlags,
    code: LocalModelFlags,
) -> None:
    """Get predictions from a model folder, without a server.

    The model is loaded in this process, the way a node would load it.
    Custom prediction routines work too (gcloud refused them).

    Example: pilotlight local predict --model-dir ./flowers --json-instances instances.jsonl
    """
    instances.check_flags()
    # Before instances are read: nobody should type those of a model that is not there.
    settings = code.load_node_settings(model_dir)
    body = instances.read_body()
    # What the model's code prints goes to standard error, not among the results.
    with redirect_stdout(sys.stderr), prepare_model(settings, print_note) as source:
        answer = _compute_answer(source, settings, body, instances.content_type)
    output.show_predictions(orjson.loads(answer))


def _compute_answer(source: LoadSpec, settings: NodeConfig, body: bytes, content_type: str) -> bytes:
    config.set_framework_environment()
    from serving.node.codecs import ServedModel  # noqa: PLC0415  start-up time of the other commands
    from serving.node.codecs.ai_platform import create_codec  # noqa: PLC0415
    from serving.protocols import RequestMetadata  # noqa: PLC0415
    from serving.runtimes import load_model  # noqa: PLC0415
    from serving.runtimes.json_codec import AnswerStyle, InstancesDecoder, encode_predictions  # noqa: PLC0415
    from serving.runtimes.schema_inference import infer_model_schema  # noqa: PLC0415

    runtime = load_model(source)
    for warning in getattr(runtime, "warnings", ()):
        print_warning(warning)
    if content_type == NPY:
        model = ServedModel(runtime, infer_model_schema(runtime, source.model_dir), InstancesDecoder())
        request = create_codec(RequestMetadata(content_type=NPY), model).decode_request(body)
        batch, parameters = request.instances, request.parameters
    else:
        batch, parameters = InstancesDecoder().decode(body, runtime.input_format)
    style = AnswerStyle(settings.single_output == "bare", settings.long_decimals)
    try:
        return encode_predictions(runtime.predict(batch, **parameters), style)
    except ServingError:
        raise
    except Exception as error:
        raise ModelFailed(f"{type(error).__name__}: {error}") from error
