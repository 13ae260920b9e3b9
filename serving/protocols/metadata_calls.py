"""Answers calls about models and the server in all protocols, for the gateway and for standalone nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from serving.model_schema import ModelSchema
from serving.protocols import inference_metadata as inference
from serving.protocols import tensorflow_metadata as tensorflow
from serving.protocols import triton_extensions
from serving.protocols.tensorflow_metadata import VersionStatus

_NOT_READY = 503


class ModelInfo(Protocol):
    """Information about the server, and about the model or version that a call names."""

    def is_serving(self) -> bool:
        """Whether the server answers predictions."""

    def server_metadata(self) -> Mapping[str, Any]: ...

    def list_statistics(self, model: str) -> Sequence[Mapping[str, Any]]:
        """Statistics of the model's versions, of all models if the call names none. Raises NotFound."""

    def list_all_versions(self) -> Iterable[tuple[str, VersionStatus]]:
        """The versions of all models, with the models' names."""

    def is_model_ready(self) -> bool:
        """Whether predictions are answered. Raises NotFound."""

    def version_statuses(self) -> Sequence[VersionStatus]:
        """Raises NotFound."""

    async def resolve_schema(self) -> tuple[str, ModelSchema]:
        """The id and the schema of the version that answers. Raises NotFound or FailedPrecondition."""


async def answer_http_call(
    method: str, model: str, info: ModelInfo, *, only_ready: bool = False
) -> tuple[int, Any]:
    """The status and the JSON value that answer a method, by its full name, about `model`.

    `only_ready` is the condition of a repository index. Raises what `ModelInfo` does.
    """
    name = method.rpartition(".")[2]
    if name == "GetModelStatus":
        return 200, tensorflow.render_status(info.version_statuses())
    if name == "GetModelMetadata":
        return 200, tensorflow.render_metadata(model, *await info.resolve_schema())
    found = await answer_inference_call(name, model, info, only_ready=only_ready)
    is_refused = name in ("ServerReady", "ModelReady") and not found["ready"]
    return _NOT_READY if is_refused else 200, found


async def answer_inference_call(name: str, model: str, info: ModelInfo, *, only_ready: bool = False) -> Any:
    """The JSON value that answers a call of the Open Inference Protocol or of Triton's extensions."""
    match name:
        case "ModelMetadata":
            _, schema = await info.resolve_schema()
            return inference.render_metadata(model, info.version_statuses(), schema)
        case "ModelConfig":
            _, schema = await info.resolve_schema()
            return triton_extensions.render_model_config(model, schema)
        case "RepositoryIndex":
            return triton_extensions.render_repository_index(info.list_all_versions(), only_ready=only_ready)
    return _ANSWERS[name](model, info)


_ANSWERS: Mapping[str, Callable[[str, ModelInfo], Mapping[str, Any]]] = {
    "ServerLive": lambda _, __: inference.render_live(),
    "ServerReady": lambda _, info: inference.render_ready(info.is_serving()),
    "ServerMetadata": lambda _, info: info.server_metadata(),
    "ModelReady": lambda model, info: inference.render_model_ready(model, info.is_model_ready()),
    "ModelStatistics": lambda model, info: {"model_stats": info.list_statistics(model)},
    "AllModelStatistics": lambda model, info: {"model_stats": info.list_statistics(model)},
}
