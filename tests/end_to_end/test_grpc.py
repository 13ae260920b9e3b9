"""gRPC on real processes: a node alone, and how it stops."""

from __future__ import annotations

import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from serving.transport.grpc_server.rpc_methods import RPC_METHODS
from tests.bounds import HANG_SECONDS
from tests.calls import Reply, call, grpc, infer_request, load_message_class, predict_request
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
        ready(channel)
        yield channel


def ready(channel: grpc.Channel) -> None:
    """Wait until the server says that it serves."""
    health, request = health_pb2_grpc.HealthStub(channel), health_pb2.HealthCheckRequest()
    until(lambda: health.Check(request, timeout=30).status == STATUS.SERVING, "it is ready")


def test_a_node_alone_answers_for_any_name(channel: grpc.Channel) -> None:
    """In both protocols, also what it is asked about itself."""
    told = call(channel, *PREDICT, predict_request("any", [0.0, -1.0], version="7"))
    assert list(told.message.outputs["predictions"].double_val) == [0.0, -1.0]
    assert (told.message.model_spec.name, told.message.model_spec.version.value) == ("any", 7)
    told = call(channel, *INFER, infer_request("projects/p/models/m", [-2.0]))
    assert list(told.message.outputs[0].contents.fp64_contents) == [-2.0]

    service, package = "inference.GRPCInferenceService", "inference"
    for name in ("ServerReady", "ModelReady"):
        request = load_message_class(f"{package}.{name}Request")(
            **({"name": "m"} if name == "ModelReady" else {})
        )
        assert call(channel, f"{service}/{name}", f"{package}.{name}Response", request).message.ready
    request = load_message_class("inference.ModelMetadataRequest")(name="m")
    told = call(channel, f"{service}/ModelMetadata", "inference.ModelMetadataResponse", request)
    assert (told.message.platform, list(told.message.versions)) == ("custom", ["1"])
    request = load_message_class("tensorflow.serving.GetModelStatusRequest")(model_spec={"name": "m"})
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
        load_message_class("tensorflow.serving.GetModelMetadataRequest")(model_spec={"name": "m"}),
    )
    assert (unasked.code, "metadata_field" in unasked.text) == ("INVALID_ARGUMENT", True)


def test_a_node_of_another_method(tmp_path: Path) -> None:
    """By `--prediction-method`, over REST and gRPC; the Open Inference Protocol asks for others by name."""
    rows = models.data()[0][:3]
    model = models.write_sklearn(tmp_path / "model")
    proba, labels = model.predict_proba(rows).ravel().tolist(), model.predict(rows).tolist()
    infer = load_message_class("inference.ModelInferRequest")(
        model_name="m", raw_input_contents=[rows.tobytes()]
    )
    infer.inputs.add(name="x", datatype="FP64", shape=rows.shape)
    named, by_field = (
        load_message_class("inference.ModelInferRequest").FromString(infer.SerializeToString()) for _ in "ab"
    )
    for name in ("predict", "predict_proba"):
        named.outputs.add(name=name)
    by_field.parameters["method"].string_param = "predict"
    with (
        running_node(tmp_path / "model", "--prediction-method", "predict_proba", "--grpc-port", "0") as node,
        grpc.insecure_channel(node.grpc) as channel,
    ):
        ready(channel)
        rest = node.predict("projects/p/models/m", rows.tolist()).json["predictions"]
        usual, both, field = (outputs_of(call(channel, *INFER, one)) for one in (infer, named, by_field))
        infer.outputs.add(name="transform")
        unknown = call(channel, *INFER, infer)

    assert [value for row in rest for value in row] == proba
    assert usual == {"predictions": proba}
    assert both == {"predict": labels, "predict_proba": proba}
    assert field == {"predictions": labels}
    assert (unknown.code, "transform" in unknown.text) == ("INVALID_ARGUMENT", True)


def outputs_of(told: Reply) -> dict[str, list[float]]:
    """The values of each output by its name."""
    assert told.code == "OK", told.text
    kinds = {"FP64": np.float64, "INT64": np.int64}
    return {
        output.name: np.frombuffer(content, kinds[output.datatype]).tolist()
        for output, content in zip(told.message.outputs, told.message.raw_output_contents, strict=True)
    }


def test_no_message_makes_a_fault(tmp_path: Path) -> None:
    """Whatever is done to the bytes of requests, to every method: what is wrong with them is the client's."""
    models.write_sklearn(tmp_path / "model")
    values = [1.0, 2.0, 3.0, 4.0]
    infer = load_message_class("inference.ModelInferRequest")(model_name="m", raw_input_contents=[bytes(32)])
    infer.inputs.add(name="x", datatype="FP64", shape=[1, 4])
    requests = [infer, infer_request("m", values), predict_request("m", values, version="1")]
    seeds, dice = [request.SerializeToString() for request in requests], random.Random(0)
    codes = Counter[str]()
    with (
        running_node(tmp_path / "model", "--grpc-port", "0") as node,
        grpc.insecure_channel(node.grpc) as channel,
    ):
        ready(channel)
        for _ in range(600):
            rpc = dice.choice(list(RPC_METHODS.values()))
            codes[call(channel, rpc.path[1:], rpc.response, damaged(dice.choice(seeds), dice)).code] += 1

    assert codes["OK"] > 50
    assert codes.keys() <= {"OK", "INVALID_ARGUMENT", "UNIMPLEMENTED", "FAILED_PRECONDITION"}


def damaged(body: bytes, dice: random.Random) -> bytes:
    """The bytes with some that are others, missing, made up, or there twice."""
    found = bytearray(body)
    for _ in range(dice.choice((1, 1, 2, 4))):
        place, count = dice.randrange(len(found) + 1), dice.randrange(1, 9)
        match dice.randrange(4):
            case 0:
                found[place : place + 1] = dice.randbytes(1)
            case 1:
                del found[place : place + count]
            case 2:
                found[place:place] = dice.randbytes(count)
            case _:
                found[place:place] = found[max(0, place - 20) : place]
    return bytes(found)


def test_a_call_under_way_is_answered_before_the_end(node: Server, channel: grpc.Channel) -> None:
    """New ones find nobody, and the process ends as it should."""
    told: list[Reply] = []
    request = infer_request("m", [1.0])
    asking = threading.Thread(target=lambda: told.append(call(channel, *INFER, request)))
    asking.start()
    while node.lines.get(timeout=HANG_SECONDS) != "sleeping\n":
        pass
    node.process.send_signal(signal.SIGTERM)

    def refused() -> bool:
        with grpc.insecure_channel(node.grpc) as another:
            return call(another, *INFER, infer_request("m", [-1.0]), seconds=5).code == "UNAVAILABLE"

    until(refused, "new calls are refused")
    asking.join()
    assert [one.code for one in told] == ["OK"]
    assert node.process.wait(timeout=HANG_SECONDS) == 0
