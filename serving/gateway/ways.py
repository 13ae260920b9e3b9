"""What a prediction asks, and of which model: all that is known of it before its body is.

It is found once for requests that say the same of themselves, and remembered with their head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

import msgspec

from serving.errors import ServingError
from serving.exchange import PREDICT_SUFFIX
from serving.gateway.access.gate import predict_permission
from serving.gateway.methods import METHODS, PREDICTION, Method
from serving.heads import RequestHead
from serving.protocols import DEFAULT_METADATA, Dialect, RequestMetadata, encode_metadata
from serving.protocols.addresses import ModelAddress, format_version, parse_address, version_number_error
from serving.protocols.calls import parse_request_metadata
from serving.protocols.paths import PredictionPath, parse_prediction_path

_AI_PLATFORM = "/v1/"
_METHODS: Mapping[tuple[Dialect, str], Method] = {
    (Dialect.AI_PLATFORM, "predict"): PREDICTION,
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
class Way:
    """What a request asks, and of which model.

    `goal` is what its target is found by: the path of AI Platform's requests, the address of others. `named`
    is the resource that it names, on which its sender needs the `permission`; "" if it names none. `problem`
    is why it leads nowhere, told only to those who may know.
    """

    method: Method
    goal: str | ModelAddress
    named: str
    permission: str
    call: RequestMetadata = DEFAULT_METADATA
    problem: ServingError | None = None
    _abouts: dict[str, bytes] = field(default_factory=dict)

    def about(self, version: str) -> bytes:
        """What the node is told, by the id of the version that answers; b"" of the plain call.

        Raises InvalidArgument if that is too much.
        """
        about = self._abouts.get(version)
        if about is None:
            call = self.call
            if call.model:
                call = msgspec.structs.replace(call, version=format_version(version))
            about = self._abouts[version] = encode_metadata(call)
        return about

    def resource(self, found: str) -> str:
        """What it is asked of, by the name of the version that was found; "" while none is."""
        if isinstance(self.goal, str) or not found:
            return self.named
        return found if self.goal.version or self.goal.label else str(self.goal.model)


def way_of(head: RequestHead, project: str) -> Way:
    """The way of a request; `project` is that of models that are not named in full."""
    try:
        asked = head.prediction_path
        call = DEFAULT_METADATA if asked is None else parse_request_metadata(asked, head.prediction_headers)
        return _way(head.path, asked, call, project)
    except ServingError as error:
        return _astray(head, project, error)


def _astray(head: RequestHead, project: str, problem: ServingError) -> Way:
    """That of a request that says something wrongly; over HTTP its path says all the same whom it is for."""
    asked = parse_prediction_path(head.path)
    if asked is not None:
        return replace(_way(head.path, asked, DEFAULT_METADATA, project), problem=problem)
    method = METHODS.get(head.path[1:].replace("/", "."), PREDICTION)  # as the paths of gRPC are
    return Way(method, "", "", "", problem=problem)


def _way(path: str, asked: PredictionPath | None, call: RequestMetadata, project: str) -> Way:
    """That of a call. Raises InvalidArgument for names that cannot be."""
    if asked is not None and asked.dialect is not Dialect.AI_PLATFORM:
        short = len(asked.model) + len(asked.version) + len(asked.label) <= _LONG
        return (_remembered if short else _by_address)(asked, call, project)
    return _plain(path) if call is DEFAULT_METADATA and len(path) <= _LONG else _by_path(path, call)


def _by_path(path: str, call: RequestMetadata) -> Way:
    named = path[len(_AI_PLATFORM) : -len(PREDICT_SUFFIX)]
    return Way(PREDICTION, path, named, predict_permission(named), call)


@lru_cache(_MANY)
def _plain(path: str) -> Way:
    return _by_path(path, DEFAULT_METADATA)


def _by_address(asked: PredictionPath, call: RequestMetadata, project: str) -> Way:
    goal = parse_address(asked.model, asked.project or project, version=asked.version, label=asked.label)
    one = goal.version or goal.label
    named = f"{goal.model}/{'versions' if goal.version else 'labels'}/{one}" if one else str(goal.model)
    problem = version_number_error(asked.version) if asked.dialect is Dialect.TENSORFLOW else None
    return Way(_METHODS[asked.dialect, asked.verb], goal, named, predict_permission(named), call, problem)


_remembered = lru_cache(_MANY)(_by_address)
