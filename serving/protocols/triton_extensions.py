"""Triton's extensions of the Open Inference Protocol, as JSON: statistics, an index, configurations.

Source: the pages "Statistics Extension", "Model Repository Extension" and "Model Configuration Extension" of
its protocol, and `grpc_service.proto`, whose fields have the same names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from serving.errors import Unimplemented
from serving.model_schema import ModelSchema, ModelSignature, TensorSpec
from serving.protocols.addresses import to_protocol_version
from serving.protocols.tensorflow_metadata import ServableState, VersionStatus

EXTENSIONS = ("statistics", "model_repository", "model_configuration")
LOADING_UNSUPPORTED = (
    "Models are not loaded and unloaded by hand here: a version wakes with its first request and sleeps "
    "while there is none. Versions are made and deleted with the API of models and versions; see docs/api.md."
)
_NO_SIGNATURE = ModelSignature((), ())
_DATA_TYPES = {"BYTES": "TYPE_STRING"}
_STATES = {
    ServableState.AVAILABLE: "READY",
    ServableState.LOADING: "LOADING",
    ServableState.UNLOADING: "UNLOADING",
}


@dataclass(frozen=True, slots=True)
class StatisticDuration:
    """The number of times that something was done, and its seconds in all."""

    count: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class InferenceStatistics:
    """Statistics of a version, by its id, since the server started.

    `last_inference_ms` is in ms since 1970, 0 for never. `rows` were answered in `calls` of the model.
    `success` and `fail` are requests, the others parts of those that succeeded: waiting, reading, computing,
    writing.
    """

    version: str
    last_inference_ms: int = 0
    rows: int = 0
    calls: int = 0
    success: StatisticDuration = StatisticDuration()
    fail: StatisticDuration = StatisticDuration()
    queue: StatisticDuration = StatisticDuration()
    read: StatisticDuration = StatisticDuration()
    compute: StatisticDuration = StatisticDuration()
    write: StatisticDuration = StatisticDuration()


def render_statistics(model: str, found: Iterable[InferenceStatistics]) -> list[dict[str, Any]]:
    """The list in the response of `GET /v2/models/M[/versions/V]/stats`."""
    return [
        {
            "name": model,
            "version": to_protocol_version(one.version),
            "last_inference": one.last_inference_ms,
            "inference_count": one.rows,
            "execution_count": one.calls,
            "inference_stats": {
                "success": _render_duration(one.success),
                "fail": _render_duration(one.fail),
                "queue": _render_duration(one.queue),
                "compute_input": _render_duration(one.read),
                "compute_infer": _render_duration(one.compute),
                "compute_output": _render_duration(one.write),
                "cache_hit": _render_duration(StatisticDuration()),
                "cache_miss": _render_duration(StatisticDuration()),
            },
            "batch_stats": [],
        }
        for one in found
    ]


def render_repository_index(
    models: Iterable[tuple[str, VersionStatus]], *, only_ready: bool
) -> list[dict[str, Any]]:
    """The versions of models: the response of `POST /v2/repository/index`."""
    return [
        {
            "name": model,
            "version": to_protocol_version(one.version),
            "state": _STATES.get(one.state, "UNAVAILABLE"),
            "reason": one.error,
        }
        for model, one in models
        if one.state is ServableState.AVAILABLE or not only_ready
    ]


def render_model_config(model: str, schema: ModelSchema) -> dict[str, Any]:
    """The rows are the first dimension of inputs and outputs: `max_batch_size` is 0."""
    signature = schema.signatures.get(schema.default, _NO_SIGNATURE)
    return {
        "name": model,
        "platform": schema.platform,
        "max_batch_size": 0,
        "input": [_render_tensor(tensor) for tensor in signature.inputs],
        "output": [_render_tensor(tensor) for tensor in signature.outputs],
    }


def standalone_unsupported_error() -> Unimplemented:
    return Unimplemented(
        "A standalone node has no statistics and no repository index: `pilotlight serve` has statistics and "
        "an index of models."
    )


def _render_duration(one: StatisticDuration) -> dict[str, int]:
    return {"count": one.count, "ns": int(one.seconds * 1e9)}


def _render_tensor(tensor: TensorSpec) -> dict[str, Any]:
    dims = [-1] if tensor.shape is None else list(tensor.shape)
    kind = _DATA_TYPES.get(tensor.datatype, f"TYPE_{tensor.datatype}")
    return {"name": tensor.name, "data_type": kind, "dims": dims}
