"""The same rows in the words of each protocol."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest

from loadtests.bench.load_clients.payload_formats import PAYLOAD_FORMATS, read_framed, write_framed
from serving.protocols.protos import load_message_class

ROWS = np.array([[0.1, 2, -3], [4, 5e-9, 6]], np.float32)


def test_json_has_the_same_numbers() -> None:
    """Read as float32 they are those of the tensor."""
    instances = json.loads(PAYLOAD_FORMATS["AI Platform JSON"].encode("x", ROWS))["instances"]
    (tensor,) = json.loads(PAYLOAD_FORMATS["V2 JSON"].encode("x", ROWS))["inputs"]

    assert np.array_equal(np.array(instances, np.float32), ROWS)
    assert (tensor["name"], tensor["shape"], tensor["datatype"]) == ("x", [2, 3], "FP32")
    assert np.array_equal(np.array(tensor["data"], np.float32).reshape(2, 3), ROWS)


def test_binary_bodies_have_the_same_bytes() -> None:
    """As NumPy writes them, and behind JSON of which the header has the length."""
    npy = PAYLOAD_FORMATS["AI Platform npy"].encode("x", ROWS)
    framed = PAYLOAD_FORMATS["V2 binary"].encode("x", ROWS)
    length = int(PAYLOAD_FORMATS["V2 binary"].headers_of(framed)["inference-header-content-length"])

    assert np.array_equal(np.load(io.BytesIO(npy), allow_pickle=False), ROWS)
    assert json.loads(framed[:length])["inputs"][0]["parameters"] == {"binary_data_size": ROWS.nbytes}
    assert framed[length:] == ROWS.tobytes()


def test_messages_have_the_same_bytes() -> None:
    """Both over gRPC."""
    predict = load_message_class("tensorflow.serving.PredictRequest").FromString(
        PAYLOAD_FORMATS["TensorFlow Serving gRPC"].encode("x", ROWS)
    )
    infer = load_message_class("inference.ModelInferRequest").FromString(
        PAYLOAD_FORMATS["V2 gRPC"].encode("x", ROWS)
    )

    assert predict.inputs["x"].tensor_content == infer.raw_input_contents[0] == ROWS.tobytes()
    assert list(infer.inputs[0].shape) == [2, 3]


@pytest.mark.parametrize("bodies", [[], [b""], [b"one\ntwo", b"\x00\r\n", b"12\n"]])
def test_bodies_of_any_bytes_are_kept(bodies: list[bytes], tmp_path: Path) -> None:
    """Line ends are bytes like all others."""
    write_framed(bodies, tmp_path / "some.framed")

    assert list(read_framed(tmp_path / "some.framed")) == bodies
