"""What Triton has beside the Open Inference Protocol, as JSON: statistics, an index, configurations.

Source: the pages "Statistics Extension", "Model Repository Extension" and "Model Configuration Extension" of
its protocol, and `grpc_service.proto`, whose fields have the same names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from serving.errors import Unimplemented
from serving.protocols.addresses import shown
from serving.protocols.tensorflow_status import Standing, State
from serving.schema import ModelSchema, ModelSignature, TensorSpec

EXTENSIONS = ("statistics", "model_repository", "model_configuration")
NO_LOADING = (
    "Models are not loaded and unloaded by hand here: a version wakes with its first request and sleeps "
    "while there is none. Versions are made and deleted with the API of models and versions; see docs/api.md."
)
_NO_SIGNATURE = ModelSignature((), ())
_TYPES = {"BYTES": "TYPE_STRING"}
_STATES = {
    State.AVAILABLE: "READY",
    State.LOADING: "LOADING",
    State.UNLOADING: "UNLOADING",
}


@dataclass(frozen=True, slots=True)
class Duration:
    """How often something was done, and for how many seconds in all."""

    count: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a version, by its id, has done since the server started.

    `last` is when, in ms since 1970, 0 for never. `rows` were answered in `calls` of the model. `success` and
    `fail` are requests, the others parts of those that succeeded: waiting, reading, computing, writing.
    """

    version: str
    last: int = 0
    rows: int = 0
    calls: int = 0
    success: Duration = Duration()
    fail: Duration = Duration()
    queue: Duration = Duration()
    read: Duration = Duration()
    compute: Duration = Duration()
    write: Duration = Duration()


def statistics(model: str, found: Iterable[Statistics]) -> list[dict[str, Any]]:
    """Of the versions of a model: the list in the answer of `GET /v2/models/M[/versions/V]/stats`."""
    return [
        {
            "name": model,
            "version": shown(one.version),
            "last_inference": one.last,
            "inference_count": one.rows,
            "execution_count": one.calls,
            "inference_stats": {
                "success": _duration(one.success),
                "fail": _duration(one.fail),
                "queue": _duration(one.queue),
                "compute_input": _duration(one.read),
                "compute_infer": _duration(one.compute),
                "compute_output": _duration(one.write),
                "cache_hit": _duration(Duration()),
                "cache_miss": _duration(Duration()),
            },
            "batch_stats": [],
        }
        for one in found
    ]


def index(models: Iterable[tuple[str, Standing]], *, only_ready: bool) -> list[dict[str, Any]]:
    """The versions of models: the answer of `POST /v2/repository/index`."""
    return [
        {
            "name": model,
            "version": shown(one.version),
            "state": _STATES.get(one.state, "UNAVAILABLE"),
            "reason": one.error,
        }
        for model, one in models
        if one.state is State.AVAILABLE or not only_ready
    ]


def config(model: str, schema: ModelSchema) -> dict[str, Any]:
    """What a model takes and answers, with the rows as the first dimension: `max_batch_size` is 0."""
    signature = schema.signatures.get(schema.default, _NO_SIGNATURE)
    return {
        "name": model,
        "platform": schema.platform,
        "max_batch_size": 0,
        "input": [_tensor(tensor) for tensor in signature.inputs],
        "output": [_tensor(tensor) for tensor in signature.outputs],
    }


def nothing_counted() -> Unimplemented:
    """The error of a node alone for questions that a server answers."""
    return Unimplemented(
        "A node alone counts nothing and knows one model by any name: `pilotlight serve` has statistics and "
        "an index of models."
    )


def _duration(one: Duration) -> dict[str, int]:
    return {"count": one.count, "ns": int(one.seconds * 1e9)}


def _tensor(tensor: TensorSpec) -> dict[str, Any]:
    dims = [-1] if tensor.shape is None else list(tensor.shape)
    kind = _TYPES.get(tensor.datatype, f"TYPE_{tensor.datatype}")
    return {"name": tensor.name, "data_type": kind, "dims": dims}
