"""What TensorFlow Serving's REST API tells of models."""

from __future__ import annotations

from serving.model_schema import CLASSIFY, ModelSchema, ModelSignature, TensorSpec
from serving.protocols.tensorflow_metadata import (
    DTYPES,
    ServableState,
    VersionStatus,
    render_metadata,
    render_status,
)

FLOWERS = ModelSchema(
    "tensorflow_savedmodel",
    {
        "serving_default": ModelSignature(
            (TensorSpec("x", "FP32", (-1, 4), "serving_default_x:0"),),
            (TensorSpec("y", "INT64", (-1,), "StatefulPartitionedCall:0"),),
        ),
        "classify": ModelSignature(
            (TensorSpec("inputs", "BYTES", None, "input:0"),),
            (TensorSpec("scores", "FP16", (), "Softmax:0"),),
            CLASSIFY,
        ),
    },
)


def test_states_of_versions() -> None:
    """The highest number first, those without one last; an error is told where there is one."""
    standings = [
        VersionStatus("v2", ServableState.AVAILABLE),
        VersionStatus("canary", ServableState.LOADING),
        VersionStatus("v10", ServableState.END, "Failed to load model: no such file. (Error code: 0)"),
    ]

    assert render_status(standings) == {
        "model_version_status": [
            {
                "version": "10",
                "state": "END",
                "status": {
                    "error_code": "UNKNOWN",
                    "error_message": "Failed to load model: no such file. (Error code: 0)",
                },
            },
            {
                "version": "2",
                "state": "AVAILABLE",
                "status": {"error_code": "OK", "error_message": ""},
            },
            {
                "version": "canary",
                "state": "LOADING",
                "status": {"error_code": "OK", "error_message": ""},
            },
        ]
    }


def test_metadata() -> None:
    """All signatures, with the names, types and shapes of their tensors."""
    told = render_metadata("flowers", "v7", FLOWERS)

    assert told["model_spec"] == {"name": "flowers", "signature_name": "", "version": "7"}
    assert told["metadata"] == {
        "signature_def": {
            "signature_def": {
                "serving_default": {
                    "inputs": {
                        "x": {
                            "dtype": "DT_FLOAT",
                            "tensor_shape": {
                                "dim": [{"size": "-1", "name": ""}, {"size": "4", "name": ""}],
                                "unknown_rank": False,
                            },
                            "name": "serving_default_x:0",
                        }
                    },
                    "outputs": {
                        "y": {
                            "dtype": "DT_INT64",
                            "tensor_shape": {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False},
                            "name": "StatefulPartitionedCall:0",
                        }
                    },
                    "method_name": "tensorflow/serving/predict",
                    "defaults": {},
                },
                "classify": {
                    "inputs": {
                        "inputs": {
                            "dtype": "DT_STRING",
                            "tensor_shape": {"dim": [], "unknown_rank": True},
                            "name": "input:0",
                        }
                    },
                    "outputs": {
                        "scores": {
                            "dtype": "DT_HALF",
                            "tensor_shape": {"dim": [], "unknown_rank": False},
                            "name": "Softmax:0",
                        }
                    },
                    "method_name": "tensorflow/serving/classify",
                    "defaults": {},
                },
            }
        }
    }


def test_every_type_of_a_schema_has_a_name() -> None:
    """Those of the Open Inference Protocol, BF16, and complex numbers."""
    whole = [f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)]
    floats = ["FP16", "BF16", "FP32", "FP64", "COMPLEX64", "COMPLEX128"]
    assert DTYPES.keys() == {"BOOL", "BYTES", *whole, *floats}
