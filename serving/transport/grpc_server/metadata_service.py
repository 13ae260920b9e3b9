"""Answers calls about models and the server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from serving.errors import InvalidArgument, Unimplemented
from serving.model_schema import ModelSchema
from serving.protocols import inference_metadata as inference
from serving.protocols import tensorflow_metadata_grpc as tensorflow
from serving.protocols import triton_extensions
from serving.protocols.protos import MessageDecodeError, load_message_class
from serving.protocols.tensorflow_metadata import VersionStatus
from serving.transport.grpc_server.rpc_methods import INFERENCE_SERVICE, RpcMethod


class ModelInfo(Protocol):
    """Information about the server, and about the model or version that a call names."""

    def is_up(self) -> bool:
        """Whether the server answers predictions."""

    def server_metadata(self) -> Mapping[str, Any]: ...

    def list_statistics(self, model: str) -> Sequence[Mapping[str, Any]]:
        """Statistics of the model's versions, of all models if the call names none. Raises NotFound."""

    def list_versions(self) -> Iterable[tuple[str, VersionStatus]]:
        """The versions of all models, with the models' names."""

    def is_ready(self) -> bool:
        """Whether predictions are answered. Raises NotFound."""

    def version_statuses(self) -> Sequence[VersionStatus]:
        """Raises NotFound."""

    async def resolve_schema(self) -> tuple[str, ModelSchema]:
        """The id and the schema of the version that answers. Raises NotFound or FailedPrecondition."""


async def answer_metadata_call(rpc: RpcMethod, body: bytes, model: str, about: ModelInfo) -> bytes:
    """Encode the response to a call about `model`, which is "" where the call is about the server.

    Raises what `ModelInfo` does, and InvalidArgument for a request that cannot be answered.
    """
    if rpc.service == INFERENCE_SERVICE:
        return _serialize_response(rpc, await _answer_inference(rpc, body, model, about))
    if rpc.name == "GetModelStatus":
        return tensorflow.encode_status_response(about.version_statuses())
    tensorflow.check_metadata_request(body)
    version, schema = await about.resolve_schema()
    return tensorflow.encode_metadata_response(model, version, schema)


async def _answer_inference(rpc: RpcMethod, body: bytes, model: str, about: ModelInfo) -> Mapping[str, Any]:
    match rpc.name:
        case "ModelReady":
            return {"ready": about.is_ready()}
        case "ModelStatistics":
            return {"model_stats": about.list_statistics(model)}
        case "ModelConfig":
            return {"config": triton_extensions.render_model_config(model, (await about.resolve_schema())[1])}
        case "ModelMetadata":
            _, schema = await about.resolve_schema()
            return inference.render_metadata(model, about.version_statuses(), schema)
        case _:
            return _answer_about_server(rpc, body, about)


def _answer_about_server(rpc: RpcMethod, body: bytes, about: ModelInfo) -> Mapping[str, Any]:
    match rpc.name:
        case "ServerLive":
            return inference.render_live()
        case "ServerReady":
            return inference.render_ready(about.is_up())
        case "ServerMetadata":
            return about.server_metadata()
        case "RepositoryIndex":
            only_ready = _parse_message(rpc, body).ready
            return {
                "models": triton_extensions.render_repository_index(
                    about.list_versions(), only_ready=only_ready
                )
            }
        case _:
            raise Unimplemented(triton_extensions.LOADING_UNSUPPORTED)


def _parse_message(rpc: RpcMethod, body: bytes) -> Any:
    try:
        return load_message_class(rpc.request).FromString(body)
    except MessageDecodeError as error:
        raise InvalidArgument(f"The message cannot be read as {rpc.request}: {error}.") from error


def _serialize_response(rpc: RpcMethod, fields: Mapping[str, Any]) -> bytes:
    serialised: bytes = load_message_class(rpc.response)(**fields).SerializeToString()
    return serialised
