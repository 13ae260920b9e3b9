"""gRPC on real processes: a node alone, and how it stops."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from textwrap import dedent

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.calls import Reply, call, grpc, infer_request, message, predict_request
from tests.end_to_end import models
from tests.server import Server, running_node, until

PREDICT = ("tensorflow.serving.PredictionService/Predict", "tensorflow.serving.PredictResponse")
INFER = ("inference.GRPCInferenceService/ModelInfer", "inference.ModelInferResponse")
STATUS = health_pb2.HealthCheckResponse

# Sleeps as long as it is told, and tells when it has begun.
SLEEPER = dedent(
    """
    import time

    class Sleeper:
        def predict(self, instances, **kwargs):
            if instances[0] > 0:
                print("sleeping", flush=True)
                time.sleep(instances[0])
            return instances

        @classmethod
        def from_path(cls, model_dir):
            return cls()
    """
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One that sleeps."""
    root = tmp_path_factory.mktemp("grpc")
    (root / "model").mkdir()
    (root / "model" / "any.txt").write_text("x")
    package = models.wheel(root, "sleeper", "0.1", {"sleeper.py": SLEEPER})
    flags = ("--prediction-class", "sleeper.Sleeper", "--package-uris", str(package), "--grpc-port", "0")
    with running_node(root / "model", *flags) as server:
        yield server


@pytest.fixture(scope="module")
def channel(node: Server) -> Iterator[grpc.Channel]:
    """To the node, once it says that it is ready."""
    with grpc.insecure_channel(node.grpc) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest()
        until(lambda: health.Check(request, timeout=30).status == STATUS.SERVING, "it is ready")
        yield channel


def test_a_node_alone_answers_for_any_name(channel: grpc.Channel) -> None:
    """In both protocols, also what it is asked about itself."""
    told = call(channel, *PREDICT, predict_request("any", [0.0, -1.0], version="7"))
    assert list(told.message.outputs["predictions"].double_val) == [0.0, -1.0]
    assert (told.message.model_spec.name, told.message.model_spec.version.value) == ("any", 7)
    told = call(channel, *INFER, infer_request("projects/p/models/m", [-2.0]))
    assert list(told.message.outputs[0].contents.fp64_contents) == [-2.0]

    service, package = "inference.GRPCInferenceService", "inference"
    for name in ("ServerReady", "ModelReady"):
        request = message(f"{package}.{name}Request")(**({"name": "m"} if name == "ModelReady" else {}))
        assert call(channel, f"{service}/{name}", f"{package}.{name}Response", request).message.ready
    request = message("inference.ModelMetadataRequest")(name="m")
    told = call(channel, f"{service}/ModelMetadata", "inference.ModelMetadataResponse", request)
    assert (told.message.platform, list(told.message.versions)) == ("custom", ["1"])
    request = message("tensorflow.serving.GetModelStatusRequest")(model_spec={"name": "m"})
    told = call(
        channel,
        "tensorflow.serving.ModelService/GetModelStatus",
        "tensorflow.serving.GetModelStatusResponse",
        request,
    )
    assert [one.version for one in told.message.model_version_status] == [1]


def test_errors_of_a_node_alone_have_codes(channel: grpc.Channel) -> None:
    """Of requests that are wrong, of those that take too long, and of questions about no model."""
    assert call(channel, *INFER, b"\xff").code == "INVALID_ARGUMENT"
    hasty = call(channel, *INFER, infer_request("m", [0.3]), metadata=[("x-request-timeout", "0.05")])
    assert hasty.code == "DEADLINE_EXCEEDED"
    assert call(channel, *INFER, infer_request("m", [0.3]), seconds=0.05).code == "DEADLINE_EXCEEDED"
    unasked = call(
        channel,
        "tensorflow.serving.PredictionService/GetModelMetadata",
        "tensorflow.serving.GetModelMetadataResponse",
        message("tensorflow.serving.GetModelMetadataRequest")(model_spec={"name": "m"}),
    )
    assert (unasked.code, "metadata_field" in unasked.text) == ("INVALID_ARGUMENT", True)


def test_a_call_under_way_is_answered_before_the_end(node: Server, channel: grpc.Channel) -> None:
    """New ones find nobody, and the process ends as it should."""
    told: list[Reply] = []
    request = infer_request("m", [1.0])
    asking = threading.Thread(target=lambda: told.append(call(channel, *INFER, request)))
    asking.start()
    while node.lines.get(timeout=30) != "sleeping\n":
        pass
    node.process.send_signal(signal.SIGTERM)

    def refused() -> bool:
        with grpc.insecure_channel(node.grpc) as another:
            return call(another, *INFER, infer_request("m", [-1.0]), seconds=5).code == "UNAVAILABLE"

    until(refused, "new calls are refused")
    asking.join()
    assert [one.code for one in told] == ["OK"]
    assert node.process.wait(timeout=10) == 0
