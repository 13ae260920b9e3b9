"""The route of a prediction: which method of which model, known from path and headers alone.

Routes are cached by path or address, and with the request head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

import msgspec

from serving.errors import ServingError
from serving.gateway.access.access_control import predict_permission
from serving.gateway.methods import METHODS, PREDICT_METHOD, ApiMethod
from serving.protocols import DEFAULT_METADATA, Dialect, RequestMetadata, encode_metadata
from serving.protocols.addresses import (
    ModelAddress,
    find_version_number_error,
    parse_address,
    to_protocol_version,
)
from serving.protocols.paths import PredictionPath, parse_prediction_path
from serving.protocols.request_metadata import parse_request_metadata
from serving.transport.request import PREDICT_SUFFIX
from serving.transport.request_head import RequestHead

_AI_PLATFORM = "/v1/"
_METHODS: Mapping[tuple[Dialect, str], ApiMethod] = {
    (Dialect.AI_PLATFORM, "predict"): PREDICT_METHOD,
    **{
        (dialect, verb): METHODS[f"tensorflow.serving.PredictionService.{name}"]
        for dialect in (Dialect.TENSORFLOW, Dialect.TENSORFLOW_GRPC)
        for verb, name in (
            ("predict", "Predict"),
            ("classify", "Classify"),
            ("regress", "Regress"),
            ("multi-inference", "MultiInference"),
        )
    },
    **{
        (dialect, "infer"): METHODS["inference.GRPCInferenceService.ModelInfer"]
        for dialect in (Dialect.INFERENCE, Dialect.INFERENCE_GRPC)
    },
}
# Routes in each cache, and the longest path or address (in characters) that is cached.
_CACHED_ROUTES, _CACHED_LENGTH = 1024, 512


@dataclass(slots=True, eq=False)
class PredictionRoute:
    """The method and the model of a prediction.

    `target_key` is the key in the routing table: the path of AI Platform's requests, the address of others.
    The caller needs `permission` on `resource_name`, "" if the request names no resource. `problem` is why
    the request cannot be routed; it is reported after access is checked.
    """

    method: ApiMethod
    target_key: str | ModelAddress
    resource_name: str
    permission: str
    metadata: RequestMetadata = DEFAULT_METADATA
    problem: ServingError | None = None
    _encoded_metadata: dict[str, bytes] = field(default_factory=dict)

    def encode_request_metadata(self, version: str) -> bytes:
        """The metadata for a node of this version id; b"" if it is the default.

        Raises InvalidArgument if it is too long.
        """
        encoded = self._encoded_metadata.get(version)
        if encoded is None:
            metadata = self.metadata
            if metadata.model:
                metadata = msgspec.structs.replace(metadata, version=to_protocol_version(version))
            encoded = self._encoded_metadata[version] = encode_metadata(metadata)
        return encoded

    def resolve_resource(self, version_name: str) -> str:
        """The resource for the logs; `version_name` is the full name of the target, "" without one."""
        if isinstance(self.target_key, str) or not version_name:
            return self.resource_name
        return (
            version_name if self.target_key.version or self.target_key.label else str(self.target_key.model)
        )


def parse_route(head: RequestHead, default_project: str) -> PredictionRoute:
    """The route of a request; `default_project` is the project of models that are named without one."""
    try:
        parsed = head.prediction_path
        metadata = (
            DEFAULT_METADATA if parsed is None else parse_request_metadata(parsed, head.prediction_headers)
        )
        return _build_route(head.path, parsed, metadata, default_project)
    except ServingError as error:
        return _invalid_route(head, default_project, error)


def _invalid_route(head: RequestHead, default_project: str, problem: ServingError) -> PredictionRoute:
    """The route of an invalid request; over HTTP the path still names its model."""
    parsed = parse_prediction_path(head.path)
    if parsed is not None:
        return replace(_build_route(head.path, parsed, DEFAULT_METADATA, default_project), problem=problem)
    method = METHODS.get(head.path[1:].replace("/", "."), PREDICT_METHOD)  # paths of gRPC: /SERVICE/METHOD
    return PredictionRoute(method, "", "", "", problem=problem)


def _build_route(
    path: str, parsed: PredictionPath | None, metadata: RequestMetadata, default_project: str
) -> PredictionRoute:
    """Raises InvalidArgument for malformed names."""
    if parsed is not None and parsed.dialect is not Dialect.AI_PLATFORM:
        is_short = len(parsed.model) + len(parsed.version) + len(parsed.label) <= _CACHED_LENGTH
        return (_cached_route_by_address if is_short else _route_by_address)(
            parsed, metadata, default_project
        )
    return (
        _cached_route_by_path(path)
        if metadata is DEFAULT_METADATA and len(path) <= _CACHED_LENGTH
        else _route_by_path(path, metadata)
    )


def _route_by_path(path: str, metadata: RequestMetadata) -> PredictionRoute:
    resource_name = path[len(_AI_PLATFORM) : -len(PREDICT_SUFFIX)]
    return PredictionRoute(PREDICT_METHOD, path, resource_name, predict_permission(resource_name), metadata)


@lru_cache(_CACHED_ROUTES)
def _cached_route_by_path(path: str) -> PredictionRoute:
    return _route_by_path(path, DEFAULT_METADATA)


def _route_by_address(
    parsed: PredictionPath, metadata: RequestMetadata, default_project: str
) -> PredictionRoute:
    target_key = parse_address(
        parsed.model, parsed.project or default_project, version=parsed.version, label=parsed.label
    )
    selector = target_key.version or target_key.label
    resource_name = (
        f"{target_key.model}/{'versions' if target_key.version else 'labels'}/{selector}"
        if selector
        else str(target_key.model)
    )
    problem = find_version_number_error(parsed.version) if parsed.dialect is Dialect.TENSORFLOW else None
    return PredictionRoute(
        _METHODS[parsed.dialect, parsed.verb],
        target_key,
        resource_name,
        predict_permission(resource_name),
        metadata,
        problem,
    )


_cached_route_by_address = lru_cache(_CACHED_ROUTES)(_route_by_address)
