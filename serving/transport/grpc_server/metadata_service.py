"""Answers calls about models and the server over gRPC."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from serving.errors import InvalidArgument, Unimplemented
from serving.protocols import tensorflow_metadata_grpc as tensorflow
from serving.protocols import triton_extensions
from serving.protocols.metadata_calls import ModelInfo, answer_inference_call
from serving.protocols.protos import MessageDecodeError, load_message_class
from serving.transport.grpc_server.rpc_methods import INFERENCE_SERVICE, RpcMethod

# Responses whose messages have another form than the JSON.
_TO_MESSAGE_FIELDS: Mapping[str, Callable[[Any], Mapping[str, Any]]] = {
    "ModelReady": lambda found: {"ready": found["ready"]},
    "ModelConfig": lambda found: {"config": found},
    "RepositoryIndex": lambda found: {"models": found},
}


async def answer_metadata_call(rpc: RpcMethod, body: bytes, model: str, info: ModelInfo) -> bytes:
    """Encode the response to a call about `model`, which is "" where the call is about the server.

    Raises what `ModelInfo` does, and InvalidArgument for a request that cannot be answered.
    """
    if rpc.service == INFERENCE_SERVICE:
        return await _answer_inference_metadata(rpc, body, model, info)
    if rpc.name == "GetModelStatus":
        return tensorflow.encode_status_response(info.version_statuses())
    tensorflow.check_metadata_request(body)
    version, schema = await info.resolve_schema()
    return tensorflow.encode_metadata_response(model, version, schema)


async def _answer_inference_metadata(rpc: RpcMethod, body: bytes, model: str, info: ModelInfo) -> bytes:
    if rpc.name in ("RepositoryModelLoad", "RepositoryModelUnload"):
        raise Unimplemented(triton_extensions.LOADING_UNSUPPORTED)
    only_ready = rpc.name == "RepositoryIndex" and _parse_message(rpc, body).ready
    found = await answer_inference_call(rpc.name, model, info, only_ready=only_ready)
    fields = _TO_MESSAGE_FIELDS[rpc.name](found) if rpc.name in _TO_MESSAGE_FIELDS else found
    message: bytes = load_message_class(rpc.response)(**fields).SerializeToString()
    return message


def _parse_message(rpc: RpcMethod, body: bytes) -> Any:
    try:
        return load_message_class(rpc.request).FromString(body)
    except MessageDecodeError as error:
        raise InvalidArgument(f"The message cannot be read as {rpc.request}: {error}.") from error
