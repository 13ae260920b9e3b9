"""What is told of models and of the server, as messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from serving.grpc.methods import INFERENCE_SERVICE, Rpc
from serving.protocols import inference_metadata as inference
from serving.protocols import tensorflow_grpc as tensorflow
from serving.protocols.protos import message
from serving.protocols.tensorflow_status import Standing
from serving.schema import Schema


class About(Protocol):
    """What is known of the server, and of the model or the version that a question is about."""

    def is_up(self) -> bool:
        """Whether the server is there to answer predictions."""

    def is_ready(self) -> bool:
        """Whether predictions of it are answered. Raises NotFound."""

    def standings(self) -> Sequence[Standing]:
        """How it stands with its versions. Raises NotFound."""

    async def described(self) -> tuple[str, Schema]:
        """The id and the schema of the version that answers. Raises NotFound or FailedPrecondition."""


async def answer(rpc: Rpc, body: bytes, model: str, about: About) -> bytes:
    """The answer to a question that names a model as `model`, "" where it is about the server.

    Raises what `About` does, and InvalidArgument for a question that cannot be answered.
    """
    if rpc.service == INFERENCE_SERVICE:
        return _message(rpc, await _inference(rpc.name, model, about))
    if rpc.name == "GetModelStatus":
        return tensorflow.status(about.standings())
    tensorflow.check_metadata_request(body)
    version, schema = await about.described()
    return tensorflow.metadata(model, version, schema)


async def _inference(name: str, model: str, about: About) -> Mapping[str, Any]:
    match name:
        case "ServerLive":
            return inference.live()
        case "ServerReady":
            return inference.ready(about.is_up())
        case "ServerMetadata":
            return inference.server()
        case "ModelReady":
            return {"ready": about.is_ready()}
        case _:
            _, schema = await about.described()
            return inference.metadata(model, about.standings(), schema)


def _message(rpc: Rpc, fields: Mapping[str, Any]) -> bytes:
    serialised: bytes = message(rpc.response)(**fields).SerializeToString()
    return serialised
