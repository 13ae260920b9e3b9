"""What the Open Inference Protocol tells of a server and of its models."""

from __future__ import annotations

from serving.protocols.inference_metadata import live, metadata, model_ready, ready, server
from serving.protocols.tensorflow_status import Standing, State
from serving.schema import ModelSchema, ModelSignature, TensorSpec


def test_a_server() -> None:
    """Its name, its version, what it knows besides; and how it is."""
    told = server()

    assert told["name"] == "pilotlight"
    assert told["version"]
    assert told["extensions"] == ["binary_tensor_data"]
    assert live() == {"live": True}
    assert [ready(True), ready(False)] == [{"ready": True}, {"ready": False}]
    assert model_ready("m", False) == {"name": "m", "ready": False}


def test_a_model() -> None:
    """The tensors of its default signature, and the versions that answer."""
    schema = ModelSchema(
        "sklearn",
        {
            "other": ModelSignature((), ()),
            "main": ModelSignature(
                (TensorSpec("age", "FP64", (-1,)), TensorSpec("anything", "BYTES", None)),
                (TensorSpec("predictions", "INT64", (-1,), classes=(0, 1)),),
            ),
        },
        default="main",
    )
    standings = [
        Standing("v1", State.AVAILABLE),
        Standing("v2", State.END, "broken"),
        Standing("canary", State.AVAILABLE),
        Standing("v10", State.AVAILABLE),
    ]

    assert metadata("census", standings, schema) == {
        "name": "census",
        "versions": ["10", "1", "canary"],
        "platform": "sklearn",
        "inputs": [
            {"name": "age", "datatype": "FP64", "shape": [-1]},
            {"name": "anything", "datatype": "BYTES", "shape": [-1]},
        ],
        "outputs": [{"name": "predictions", "datatype": "INT64", "shape": [-1]}],
    }
