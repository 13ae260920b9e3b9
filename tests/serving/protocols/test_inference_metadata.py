"""What the Open Inference Protocol tells of a server and of its models."""

from __future__ import annotations

from serving.model_schema import ModelSchema, ModelSignature, TensorSpec
from serving.protocols.inference_metadata import (
    render_live,
    render_metadata,
    render_model_ready,
    render_ready,
    render_server,
)
from serving.protocols.tensorflow_metadata import ServableState, VersionStatus


def test_a_server() -> None:
    """Its name, its version, what it knows besides; and how it is."""
    told = render_server()

    assert told["name"] == "pilotlight"
    assert told["version"]
    assert told["extensions"] == ["binary_tensor_data"]
    assert render_live() == {"live": True}
    assert [render_ready(True), render_ready(False)] == [{"ready": True}, {"ready": False}]
    assert render_model_ready("m", False) == {"name": "m", "ready": False}


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
        VersionStatus("v1", ServableState.AVAILABLE),
        VersionStatus("v2", ServableState.END, "broken"),
        VersionStatus("canary", ServableState.AVAILABLE),
        VersionStatus("v10", ServableState.AVAILABLE),
    ]

    assert render_metadata("census", standings, schema) == {
        "name": "census",
        "versions": ["10", "1", "canary"],
        "platform": "sklearn",
        "inputs": [
            {"name": "age", "datatype": "FP64", "shape": [-1]},
            {"name": "anything", "datatype": "BYTES", "shape": [-1]},
        ],
        "outputs": [{"name": "predictions", "datatype": "INT64", "shape": [-1]}],
    }
