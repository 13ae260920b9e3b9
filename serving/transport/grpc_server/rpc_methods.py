"""The methods that are served, by path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from serving.protocols import Dialect

PREDICTION_SERVICE = "tensorflow.serving.PredictionService"
MODEL_SERVICE = "tensorflow.serving.ModelService"
INFERENCE_SERVICE = "inference.GRPCInferenceService"
SERVICES = (PREDICTION_SERVICE, MODEL_SERVICE, INFERENCE_SERVICE)


class RpcMethod(NamedTuple):
    """A method of a service, with the full names of its request and response messages.

    `verb` is that of a prediction; "" for a call about models or about the server.
    """

    service: str
    name: str
    dialect: Dialect
    request: str
    response: str
    verb: str = ""

    @property
    def path(self) -> str:
        return f"/{self.service}/{self.name}"

    @property
    def has_model_name(self) -> bool:
        """Whether the request has a field that names a model."""
        return not self.name.startswith(("Server", "RepositoryIndex"))


def _tensorflow_method(service: str, name: str, message: str, verb: str = "") -> RpcMethod:
    request, response = (f"tensorflow.serving.{message}{kind}" for kind in ("Request", "Response"))
    return RpcMethod(service, name, Dialect.TENSORFLOW_GRPC, request, response, verb)


def _inference_method(name: str, verb: str = "") -> RpcMethod:
    request, response = (f"inference.{name}{kind}" for kind in ("Request", "Response"))
    return RpcMethod(INFERENCE_SERVICE, name, Dialect.INFERENCE_GRPC, request, response, verb)


def _iter_methods() -> Iterator[RpcMethod]:
    yield _tensorflow_method(PREDICTION_SERVICE, "Predict", "Predict", "predict")
    yield _tensorflow_method(PREDICTION_SERVICE, "Classify", "Classification", "classify")
    yield _tensorflow_method(PREDICTION_SERVICE, "Regress", "Regression", "regress")
    yield _tensorflow_method(PREDICTION_SERVICE, "MultiInference", "MultiInference", "multi-inference")
    yield _tensorflow_method(PREDICTION_SERVICE, "GetModelMetadata", "GetModelMetadata")
    yield _tensorflow_method(MODEL_SERVICE, "GetModelStatus", "GetModelStatus")
    yield _tensorflow_method(MODEL_SERVICE, "HandleReloadConfigRequest", "ReloadConfig")
    for name in ("ServerLive", "ServerReady", "ServerMetadata", "ModelReady", "ModelMetadata"):
        yield _inference_method(name)
    for name in ("ModelConfig", "ModelStatistics"):
        yield _inference_method(name)
    for name in ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"):
        yield _inference_method(name)
    yield _inference_method("ModelInfer", "infer")


RPC_METHODS: Mapping[str, RpcMethod] = {rpc.path: rpc for rpc in _iter_methods()}
