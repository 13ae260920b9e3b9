"""gRPC metadata calls of a standalone node: its one version answers for any name.

Imported only where gRPC is switched on (setting `grpc_port`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from serving.errors import ServingError, Unavailable
from serving.model_schema import ModelSchema
from serving.node.app import ServingNode
from serving.node.standalone.routes import DEFAULT_VERSION
from serving.protocols import Reply, triton_extensions
from serving.protocols import inference_metadata as inference
from serving.protocols.errors import render_error
from serving.protocols.tensorflow_metadata import ServableState, VersionStatus
from serving.transport.grpc_server.call import GrpcCall
from serving.transport.grpc_server.metadata_service import answer_metadata_call


class StandaloneMetadataService:
    """Answers metadata calls about the model and the node."""

    def __init__(self, node: ServingNode) -> None:
        self._node = node

    async def __call__(self, call: GrpcCall) -> Reply:
        try:
            spec = call.head.read_model_spec() if call.rpc.has_model_name else None
            info = _NodeModelInfo(self._node, _version_id((spec and spec.version) or DEFAULT_VERSION))
            model = "" if spec is None else spec.model
            return Reply(200, await answer_metadata_call(call.rpc, call.body, model, info))
        except ServingError as error:
            return render_error(error, call.rpc.dialect)


@dataclass(frozen=True, slots=True)
class _NodeModelInfo:
    """The node's model, as this version."""

    node: ServingNode
    version: str

    def is_up(self) -> bool:
        return self.node.predictor is not None

    is_ready = is_up

    def server_metadata(self) -> Mapping[str, Any]:
        return inference.render_server()

    def list_statistics(self, model: str) -> Sequence[Mapping[str, Any]]:
        raise triton_extensions.standalone_unsupported_error()

    def list_versions(self) -> Iterable[tuple[str, VersionStatus]]:
        raise triton_extensions.standalone_unsupported_error()

    def version_statuses(self) -> Sequence[VersionStatus]:
        return [
            VersionStatus(self.version, ServableState.AVAILABLE if self.is_up() else ServableState.LOADING)
        ]

    async def resolve_schema(self) -> tuple[str, ModelSchema]:
        if self.node.schema is None:
            raise Unavailable("The model is being loaded.", retry_after=1)
        return self.version, self.node.schema


def _version_id(version: str) -> str:
    """The id of a version by a client's name for it: the number 3 stands for v3."""
    return f"v{version}" if version.isdigit() else version
