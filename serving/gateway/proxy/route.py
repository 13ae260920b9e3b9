"""What a prediction asks, and of which model: all that is known of it before its body is.

It is found once for requests that say the same of themselves, and remembered with their head.
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
from serving.protocols.addresses import ModelAddress, format_version, parse_address, version_number_error
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
# Ways that are remembered of each kind, beside those of heads that come again, and their longest names.
_MANY, _LONG = 1024, 512


@dataclass(slots=True, eq=False)
class PredictionRoute:
    """What a request asks, and of which model.

    `goal` is what its target is found by: the path of AI Platform's requests, the address of others. `named`
    is the resource that it names, on which its sender needs the `permission`; "" if it names none. `problem`
    is why it leads nowhere, told only to those who may know.
    """

    method: ApiMethod
    target_key: str | ModelAddress
    resource_name: str
    permission: str
    call: RequestMetadata = DEFAULT_METADATA
    problem: ServingError | None = None
    _encoded_calls: dict[str, bytes] = field(default_factory=dict)

    def encode_call(self, version: str) -> bytes:
        """What the node is told, by the id of the version that answers; b"" of the plain call.

        Raises InvalidArgument if that is too much.
        """
        encoded = self._encoded_calls.get(version)
        if encoded is None:
            call = self.call
            if call.model:
                call = msgspec.structs.replace(call, version=format_version(version))
            encoded = self._encoded_calls[version] = encode_metadata(call)
        return encoded

    def resolve_resource(self, version_name: str) -> str:
        """What it is asked of, by the name of the version that was found; "" while none is."""
        if isinstance(self.target_key, str) or not version_name:
            return self.resource_name
        return (
            version_name if self.target_key.version or self.target_key.label else str(self.target_key.model)
        )


def parse_route(head: RequestHead, default_project: str) -> PredictionRoute:
    """The way of a request; `project` is that of models that are not named in full."""
    try:
        asked = head.prediction_path
        call = DEFAULT_METADATA if asked is None else parse_request_metadata(asked, head.prediction_headers)
        return _build_route(head.path, asked, call, default_project)
    except ServingError as error:
        return _invalid_route(head, default_project, error)


def _invalid_route(head: RequestHead, default_project: str, problem: ServingError) -> PredictionRoute:
    """That of a request that says something wrongly; over HTTP its path says all the same whom it is for."""
    asked = parse_prediction_path(head.path)
    if asked is not None:
        return replace(_build_route(head.path, asked, DEFAULT_METADATA, default_project), problem=problem)
    method = METHODS.get(head.path[1:].replace("/", "."), PREDICT_METHOD)  # as the paths of gRPC are
    return PredictionRoute(method, "", "", "", problem=problem)


def _build_route(
    path: str, asked: PredictionPath | None, call: RequestMetadata, default_project: str
) -> PredictionRoute:
    """That of a call. Raises InvalidArgument for names that cannot be."""
    if asked is not None and asked.dialect is not Dialect.AI_PLATFORM:
        short = len(asked.model) + len(asked.version) + len(asked.label) <= _LONG
        return (_cached_route_by_address if short else _route_by_address)(asked, call, default_project)
    return (
        _cached_route_by_path(path)
        if call is DEFAULT_METADATA and len(path) <= _LONG
        else _route_by_path(path, call)
    )


def _route_by_path(path: str, call: RequestMetadata) -> PredictionRoute:
    resource_name = path[len(_AI_PLATFORM) : -len(PREDICT_SUFFIX)]
    return PredictionRoute(PREDICT_METHOD, path, resource_name, predict_permission(resource_name), call)


@lru_cache(_MANY)
def _cached_route_by_path(path: str) -> PredictionRoute:
    return _route_by_path(path, DEFAULT_METADATA)


def _route_by_address(asked: PredictionPath, call: RequestMetadata, default_project: str) -> PredictionRoute:
    target_key = parse_address(
        asked.model, asked.project or default_project, version=asked.version, label=asked.label
    )
    one = target_key.version or target_key.label
    resource_name = (
        f"{target_key.model}/{'versions' if target_key.version else 'labels'}/{one}"
        if one
        else str(target_key.model)
    )
    problem = version_number_error(asked.version) if asked.dialect is Dialect.TENSORFLOW else None
    return PredictionRoute(
        _METHODS[asked.dialect, asked.verb],
        target_key,
        resource_name,
        predict_permission(resource_name),
        call,
        problem,
    )


_cached_route_by_address = lru_cache(_MANY)(_route_by_address)
