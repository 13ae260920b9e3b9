"""The messages of other protocols: compiled from their files, in a pool of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool

from serving.protocols import protos

FILES = protos.COMPILED_PROTOS.parent


def test_what_is_compiled_is_what_the_files_say(tmp_path: Path) -> None:
    """`make protos` makes protos.binpb as it is."""
    again = tmp_path / "again.binpb"
    files = sorted(path.name for path in FILES.glob("*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={FILES}"]
    subprocess.run([*command, f"--descriptor_set_out={again}", *files], check=True, cwd=FILES)

    of = descriptor_pb2.FileDescriptorSet.FromString
    assert of(protos.COMPILED_PROTOS.read_bytes()) == of(again.read_bytes()), "run `make protos`"


def test_messages_are_found_by_name() -> None:
    """A class is made once, and its messages go through bytes."""
    request = protos.load_message_class("tensorflow.serving.PredictRequest")(output_filter=["y"])
    request.model_spec.version.value = 3
    request.inputs["x"].float_val.extend([1, 2])
    assert protos.load_message_class("tensorflow.serving.PredictRequest") is type(request)
    assert type(request).FromString(request.SerializeToString()) == request

    with pytest.raises(KeyError):
        protos.load_message_class("tensorflow.serving.Nothing")
    with pytest.raises(protos.MessageDecodeError):
        type(request).FromString(b"\x0a\xff")


def test_anything_can_be_packed() -> None:
    """Messages of this pool go into an Any of this pool and come out."""
    packed = protos.load_message_class("google.protobuf.Any")()
    packed.Pack(protos.load_message_class("tensorflow.serving.SignatureDefMap")())
    assert packed.type_url == "type.googleapis.com/tensorflow.serving.SignatureDefMap"
    assert packed.Unpack(protos.load_message_class("tensorflow.serving.SignatureDefMap")())


def test_nothing_is_declared_for_the_whole_process() -> None:
    """Whoever has `tensorflow_serving` or `tritonclient` can import it beside us."""
    protos.load_message_class("inference.ModelInferRequest")
    for file in sorted(path.name for path in FILES.glob("*.proto")):
        with pytest.raises(KeyError):
            descriptor_pool.Default().FindFileByName(file)


@pytest.mark.parametrize(
    "service, methods",
    [
        (
            "tensorflow.serving.PredictionService",
            ["Classify", "Regress", "Predict", "MultiInference", "GetModelMetadata"],
        ),
        ("tensorflow.serving.ModelService", ["GetModelStatus", "HandleReloadConfigRequest"]),
        (
            "inference.GRPCInferenceService",
            [
                *("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer"),
                *("ModelConfig", "ModelStatistics"),
                *("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"),
            ],
        ),
    ],
)
def test_services_are_described(service: str, methods: list[str]) -> None:
    """What reflection tells of them."""
    assert [
        method.name for method in protos.load_descriptor_pool().FindServiceByName(service).methods
    ] == methods
