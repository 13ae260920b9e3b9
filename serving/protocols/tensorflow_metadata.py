"""Model metadata of TensorFlow Serving's REST API: the states of versions, and signatures.

Source: TensorFlow Serving's `model_service.proto` and `get_model_metadata.proto`, TensorFlow's
`meta_graph.proto`; as proto3 JSON has them, with the fields at their defaults.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from serving.model_schema import ModelSchema, ModelSignature, TensorSpec
from serving.protocols.addresses import extract_version_number, to_protocol_version

DTYPES = {
    "BOOL": "DT_BOOL",
    "UINT8": "DT_UINT8",
    "UINT16": "DT_UINT16",
    "UINT32": "DT_UINT32",
    "UINT64": "DT_UINT64",
    "INT8": "DT_INT8",
    "INT16": "DT_INT16",
    "INT32": "DT_INT32",
    "INT64": "DT_INT64",
    "FP16": "DT_HALF",
    "BF16": "DT_BFLOAT16",
    "FP32": "DT_FLOAT",
    "FP64": "DT_DOUBLE",
    "BYTES": "DT_STRING",
    "COMPLEX64": "DT_COMPLEX64",
    "COMPLEX128": "DT_COMPLEX128",
}


class ServableState(enum.StrEnum):
    """TensorFlow Serving's states of a version; one that is scaled to zero is AVAILABLE: it answers."""

    UNKNOWN = "UNKNOWN"
    START = "START"
    LOADING = "LOADING"
    AVAILABLE = "AVAILABLE"
    UNLOADING = "UNLOADING"
    END = "END"


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """The state of a version, by its id; `error` is why it failed, "" if it has not."""

    version: str
    state: ServableState
    error: str = ""


def sort_newest_first(standings: Iterable[VersionStatus]) -> list[VersionStatus]:
    """Sort by number, the highest first, then those that have none."""
    return sorted(standings, key=lambda one: int(extract_version_number(one.version) or -1), reverse=True)


def render_status(standings: Iterable[VersionStatus]) -> dict[str, Any]:
    """The response of `GET /v1/models/M[/versions/V|/labels/L]`."""
    return {
        "model_version_status": [
            {
                "version": to_protocol_version(one.version),
                "state": str(one.state),
                "status": {"error_code": "UNKNOWN" if one.error else "OK", "error_message": one.error},
            }
            for one in sort_newest_first(standings)
        ]
    }


def render_metadata(model: str, version: str, schema: ModelSchema) -> dict[str, Any]:
    """The response of `GET /v1/models/M[/versions/V|/labels/L]/metadata`; `version` is an id."""
    signatures = {name: _render_signature(one) for name, one in schema.signatures.items()}
    return {
        "model_spec": {"name": model, "signature_name": "", "version": to_protocol_version(version)},
        "metadata": {"signature_def": {"signature_def": signatures}},
    }


def _render_signature(signature: ModelSignature) -> dict[str, Any]:
    return {
        "inputs": {tensor.name: _render_tensor(tensor) for tensor in signature.inputs},
        "outputs": {tensor.name: _render_tensor(tensor) for tensor in signature.outputs},
        "method_name": signature.method,
        "defaults": {},
    }


def to_tensorflow_dtype(tensor: TensorSpec) -> str:
    return DTYPES.get(tensor.datatype, "DT_INVALID")


def _render_tensor(tensor: TensorSpec) -> dict[str, Any]:
    dimensions = [{"size": str(size), "name": ""} for size in tensor.shape or ()]
    return {
        "dtype": to_tensorflow_dtype(tensor),
        "tensor_shape": {"dim": dimensions, "unknown_rank": tensor.shape is None},
        "name": tensor.tensor,
    }
