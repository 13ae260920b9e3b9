"""Server and model metadata of the Open Inference Protocol, as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version as version_of
from typing import Any

from serving.model_schema import ModelSchema, ModelSignature, TensorSpec
from serving.protocols.addresses import to_protocol_version
from serving.protocols.tensorflow_metadata import ServableState, VersionStatus, sort_newest_first

# Tensors as bytes beside the JSON, both ways.
EXTENSIONS = ("binary_tensor_data",)
# The default name of a server.
SERVER_NAME = "pilotlight"
_NO_SIGNATURE = ModelSignature((), ())


def render_server(name: str = SERVER_NAME, extensions: Iterable[str] = ()) -> dict[str, Any]:
    """The response of `GET /v2`; `extensions` are those beside EXTENSIONS."""
    return {
        "name": name,
        "version": version_of("pilotlight"),
        "extensions": [*EXTENSIONS, *extensions],
    }


def render_live() -> dict[str, Any]:
    """The response of `GET /v2/health/live`."""
    return {"live": True}


def render_ready(is_ready: bool) -> dict[str, Any]:
    """The response of `GET /v2/health/ready`."""
    return {"ready": is_ready}


def render_model_ready(model: str, is_ready: bool) -> dict[str, Any]:
    """The response of `GET /v2/models/M[/versions/V]/ready`."""
    return {"name": model, "ready": is_ready}


def render_metadata(model: str, standings: Iterable[VersionStatus], schema: ModelSchema) -> dict[str, Any]:
    """The response of `GET /v2/models/M[/versions/V]`.

    `standings` are those of the versions that it describes. The protocol has one set of inputs and outputs:
    it is that of the default signature, and empty where there is none.
    """
    signature = schema.signatures.get(schema.default, _NO_SIGNATURE)
    available = [one for one in sort_newest_first(standings) if one.state is ServableState.AVAILABLE]
    return {
        "name": model,
        "versions": [to_protocol_version(one.version) for one in available],
        "platform": schema.platform,
        "inputs": [_render_tensor(tensor) for tensor in signature.inputs],
        "outputs": [_render_tensor(tensor) for tensor in (*signature.outputs, *schema.methods)],
    }


def _render_tensor(tensor: TensorSpec) -> dict[str, Any]:
    """The protocol cannot express a shape of unknown rank: it becomes one dimension of any size."""
    shape = [-1] if tensor.shape is None else list(tensor.shape)
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": shape}
