"""What is told of models and of the server, as messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from serving.errors import InvalidArgument, Unimplemented
from serving.grpc.methods import INFERENCE_SERVICE, Rpc
from serving.protocols import inference_metadata as inference
from serving.protocols import tensorflow_grpc as tensorflow
from serving.protocols import triton
from serving.protocols.protos import Malformed, message
from serving.protocols.tensorflow_status import Standing
from serving.schema import ModelSchema


class About(Protocol):
    """What is known of the server, and of the model or the version that a question is about."""

    def is_up(self) -> bool:
        """Whether the server is there to answer predictions."""

    def metadata(self) -> Mapping[str, Any]:
        """What the server is."""

    def statistics(self, model: str) -> Sequence[Mapping[str, Any]]:
        """What its versions have done, those of all models if it is about none. Raises NotFound."""

    def models(self) -> Iterable[tuple[str, Standing]]:
        """The versions of all models."""

    def is_ready(self) -> bool:
        """Whether predictions of it are answered. Raises NotFound."""

    def standings(self) -> Sequence[Standing]:
        """How it stands with its versions. Raises NotFound."""

    async def described(self) -> tuple[str, ModelSchema]:
        """The id and the schema of the version that answers. Raises NotFound or FailedPrecondition."""


async def answer(rpc: Rpc, body: bytes, model: str, about: About) -> bytes:
    """The answer to a question that names a model as `model`, "" where it is about the server.

    Raises what `About` does, and InvalidArgument for a question that cannot be answered.
    """
    if rpc.service == INFERENCE_SERVICE:
        return _message(rpc, await _inference(rpc, body, model, about))
    if rpc.name == "GetModelStatus":
        return tensorflow.status(about.standings())
    tensorflow.check_metadata_request(body)
    version, schema = await about.described()
    return tensorflow.metadata(model, version, schema)


async def _inference(rpc: Rpc, body: bytes, model: str, about: About) -> Mapping[str, Any]:
    match rpc.name:
        case "ModelReady":
            return {"ready": about.is_ready()}
        case "ModelStatistics":
            return {"model_stats": about.statistics(model)}
        case "ModelConfig":
            return {"config": triton.config(model, (await about.described())[1])}
        case "ModelMetadata":
            _, schema = await about.described()
            return inference.metadata(model, about.standings(), schema)
        case _:
            return _of_server(rpc, body, about)


def _of_server(rpc: Rpc, body: bytes, about: About) -> Mapping[str, Any]:
    match rpc.name:
        case "ServerLive":
            return inference.live()
        case "ServerReady":
            return inference.ready(about.is_up())
        case "ServerMetadata":
            return about.metadata()
        case "RepositoryIndex":
            only_ready = _parse_message(rpc, body).ready
            return {"models": triton.index(about.models(), only_ready=only_ready)}
        case _:
            raise Unimplemented(triton.NO_LOADING)


def _parse_message(rpc: Rpc, body: bytes) -> Any:
    try:
        return message(rpc.request).FromString(body)
    except Malformed as error:
        raise InvalidArgument(f"The message cannot be read as {rpc.request}: {error}.") from error


def _message(rpc: Rpc, fields: Mapping[str, Any]) -> bytes:
    serialised: bytes = message(rpc.response)(**fields).SerializeToString()
    return serialised
