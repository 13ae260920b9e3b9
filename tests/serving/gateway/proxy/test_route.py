"""What a request asks of whom, in all protocols."""

from __future__ import annotations

import pytest

from serving.errors import InvalidArgument, NotAcceptable
from serving.gateway.methods import METHODS, PREDICTION_METHODS
from serving.gateway.proxy.route import PredictionRoute, parse_route
from serving.names import ModelName
from serving.protocols import DEFAULT_METADATA, Dialect, RequestMetadata, decode_metadata
from serving.protocols.addresses import ModelAddress
from serving.protocols.paths import PredictionPath
from serving.transport.request_head import RequestHead

M = ModelName("home", "m")
PREDICT = "tensorflow.serving.PredictionService.Predict"
INFER = "inference.GRPCInferenceService.ModelInfer"


class GrpcHead(RequestHead):
    """A head whose message says what its path does not."""

    __slots__ = ("said",)

    def __init__(self, path: str, said: PredictionPath | InvalidArgument) -> None:
        super().__init__("POST", path, [])
        self.said = said

    @property
    def prediction_path(self) -> PredictionPath | None:
        if isinstance(self.said, PredictionPath):
            return self.said
        raise self.said


def route_of(path: str, **headers: str) -> PredictionRoute:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return parse_route(RequestHead("POST", path, raw), "home")


@pytest.mark.parametrize(
    ("path", "method", "target_key", "resource_name"),
    [
        ("/v1/models/m:predict", PREDICT, ModelAddress(M), "projects/home/models/m"),
        (
            "/v1/models/m/versions/3:predict",
            PREDICT,
            ModelAddress(M, "3"),
            "projects/home/models/m/versions/3",
        ),
        (
            "/v1/models/m/labels/x:classify",
            "tensorflow.serving.PredictionService.Classify",
            ModelAddress(M, label="x"),
            "projects/home/models/m/labels/x",
        ),
        (
            "/v1/models/m:regress",
            "tensorflow.serving.PredictionService.Regress",
            ModelAddress(M),
            "projects/home/models/m",
        ),
        ("/v2/models/m/infer", INFER, ModelAddress(M), "projects/home/models/m"),
        (
            "/v2/models/projects/p/models/m/versions/v3/infer",
            INFER,
            ModelAddress(ModelName("p", "m"), "v3"),
            "projects/p/models/m/versions/v3",
        ),
        (
            "/v1/projects/p/models/m:predict",
            "projects.predict",
            "/v1/projects/p/models/m:predict",
            "projects/p/models/m",
        ),
    ],
)
def test_paths(path: str, method: str, target_key: object, resource_name: str) -> None:
    """The method, the model, and what its caller must be allowed."""
    found = route_of(path)

    assert (found.method.id, found.target_key, found.resource_name) == (method, target_key, resource_name)
    one = "versions" in resource_name or "labels" in resource_name
    assert found.permission == ("ml.versions.predict" if one else "ml.models.predict")
    assert found.problem is None


def test_what_a_node_is_told() -> None:
    """Nothing of an ordinary request; else what kind it is, and what its client calls model and version."""
    assert route_of("/v1/projects/p/models/m:predict", accept="*/*").encode_request_metadata("v3") == b""
    metadata = decode_metadata(route_of("/v1/models/m/versions/0003:predict").encode_request_metadata("v3"))
    assert metadata == RequestMetadata(Dialect.TENSORFLOW, "predict", "m", "3")
    assert (
        decode_metadata(route_of("/v2/models/m/infer").encode_request_metadata("canary")).version == "canary"
    )
    binary = route_of("/v1/projects/p/models/m:predict", content_type="application/x-npy")
    assert decode_metadata(binary.encode_request_metadata("v3")) == RequestMetadata(
        content_type="application/x-npy"
    )
    assert binary.encode_request_metadata("v3") is binary.encode_request_metadata("v3")


def test_ways_of_the_same_words_are_one() -> None:
    """Also where the rest of their heads differs."""
    assert route_of("/v1/models/m:predict", x_request_id="1") is route_of(
        "/v1/models/m:predict", x_request_id="2"
    )
    assert route_of("/v1/models/m:predict") is not route_of("/v1/models/n:predict")


def test_what_it_was_asked_of() -> None:
    """The version that was found, if one was named; else its model."""
    assert (
        route_of("/v1/models/m/versions/3:predict")
        .resolve_resource("projects/home/models/m/versions/v3")
        .endswith("/v3")
    )
    assert (
        route_of("/v1/models/m:predict")
        .resolve_resource("projects/home/models/m/versions/v3")
        .endswith("models/m")
    )
    assert route_of("/v1/models/m/versions/3:predict").resolve_resource("").endswith("/versions/3")


def test_an_answer_in_the_binary_form_says_what_it_is_of() -> None:
    """On AI Platform's route too."""
    metadata = route_of(
        "/v1/projects/p/models/m:predict", accept="application/octet-stream"
    ).encode_request_metadata("v3")
    assert (decode_metadata(metadata).model, decode_metadata(metadata).version) == ("m", "3")


def test_what_is_long_is_not_remembered() -> None:
    """Names and headers are the client's to choose; they find what they always do."""
    long = "m" * 1000
    first, second = route_of(f"/v1/models/{long}:predict"), route_of(f"/v1/models/{long}:predict")
    assert first is not second
    assert first.target_key == second.target_key == ModelAddress(ModelName("home", long))
    path = f"/v1/projects/p/models/{long}:predict"
    assert route_of(path).target_key == path
    assert route_of(path) is not route_of(path)
    assert route_of(path, accept="*/*, " * 1000).metadata is DEFAULT_METADATA


def test_problems_are_kept_for_those_who_may_know() -> None:
    """With the method, so that it is known whom to tell how."""
    refused = route_of("/v1/projects/p/models/m:predict", accept="text/html")
    assert isinstance(refused.problem, NotAcceptable)
    assert (refused.method.id, refused.resource_name) == ("projects.predict", "projects/p/models/m")
    assert route_of("/v1/projects/p/models/m:predict").problem is None
    wrong = route_of("/v2/models/m/infer", inference_header_content_length="many")
    assert isinstance(wrong.problem, InvalidArgument)
    assert (wrong.method.id, wrong.metadata) == (INFER, DEFAULT_METADATA)
    assert (wrong.resource_name, wrong.permission) == ("projects/home/models/m", "ml.models.predict")


def test_over_grpc() -> None:
    """The message says which model; a name in full counts; what it says wrongly is a problem."""
    path = "/inference.GRPCInferenceService/ModelInfer"
    full = GrpcHead(path, PredictionPath(Dialect.INFERENCE_GRPC, "infer", "projects/p/models/m", version="3"))
    assert parse_route(full, "home").target_key == ModelAddress(ModelName("p", "m"), "3")
    assert parse_route(full, "home").metadata == RequestMetadata(
        Dialect.INFERENCE_GRPC, "infer", "projects/p/models/m"
    )

    for said in (InvalidArgument("no model"), PredictionPath(Dialect.INFERENCE_GRPC, "infer", "a/b")):
        wrong = parse_route(GrpcHead(path, said), "home")
        assert wrong.method is METHODS[INFER]
        assert isinstance(wrong.problem, InvalidArgument)
        assert wrong.resource_name == ""


def test_every_method_of_predictions_is_asked_for() -> None:
    """In one dialect or another."""
    verbs = {
        Dialect.AI_PLATFORM: ["predict"],
        Dialect.TENSORFLOW_GRPC: ["predict", "classify", "regress", "multi-inference"],
        Dialect.INFERENCE_GRPC: ["infer"],
    }
    found = {
        parse_route(
            GrpcHead("/v1/projects/p/models/m:predict", PredictionPath(dialect, verb, "m")), "home"
        ).method
        for dialect, some in verbs.items()
        for verb in some
    }
    assert found == PREDICTION_METHODS
