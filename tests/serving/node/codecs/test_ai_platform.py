from __future__ import annotations

import io
from typing import Any

import numpy as np
import orjson
import pytest
from numpy.typing import NDArray

from serving.errors import InvalidInputs, InvalidOutputs
from serving.http_headers import BINARY, NPY
from serving.model_schema import TensorSpec
from serving.node.codecs import Codec, DecodedRequest, ServedModel
from serving.node.codecs.ai_platform import create_codec
from serving.protocols import RequestMetadata
from serving.runtimes.instance_batch import Batch, WholeTensors
from tests.serving.node.codecs import models

IMAGE = models.graph(TensorSpec("image", "FP32", (-1, 2, 2)))


def saved(array: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def made(
    model: ServedModel, *, content_type: str = "", accept: str = "", json_bytes: int | None = None
) -> Codec:
    return create_codec(
        RequestMetadata(model="m", content_type=content_type, accept=accept, json_bytes=json_bytes), model
    )


def written(
    predictions: Batch, accept: str, asked: DecodedRequest | None = None
) -> tuple[dict[bytes, bytes], bytes]:
    reply = made(IMAGE, accept=accept).encode_response(asked or DecodedRequest([]), predictions)
    assert reply.status == 200
    return dict(reply.headers), reply.body


# ---- bodies


def test_an_array_is_the_instances() -> None:
    """Not a number of them is copied where the body is the node's own."""
    rows = np.arange(6.0).reshape(2, 3)
    body = bytearray(saved(rows))

    asked = made(models.booster(3), content_type=NPY).decode_request(body)

    assert isinstance(asked.instances, np.ndarray)
    np.testing.assert_array_equal(asked.instances, rows)
    assert np.shares_memory(asked.instances, np.frombuffer(body, np.uint8))
    assert asked.parameters == {}


def test_an_array_is_the_one_input_of_a_graph() -> None:
    """Whatever that is called; rows that are independent can share calls."""
    image = np.ones((1, 2, 2), np.float32)

    asked = made(IMAGE, content_type=NPY).decode_request(bytearray(saved(image)))

    assert isinstance(asked.instances, dict)
    np.testing.assert_array_equal(asked.instances["image"], image)


def test_texts_are_texts() -> None:
    """As JSON has them."""
    assert made(models.routine(), content_type=NPY).decode_request(saved(np.array(["a", "ü"]))).instances == [
        "a",
        "ü",
    ]


def test_named_columns_are_taken_in_their_order() -> None:
    """As rows of lists are in JSON."""
    asked = made(models.named("a", "b"), content_type=NPY).decode_request(saved(np.array([[1.0, 2.0]])))

    assert np.asarray(asked.instances).tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize(
    ("model", "array", "message"),
    [
        (models.booster(3), np.zeros((1, 4)), r"takes numbers of shape \[-1, 3\]; got FP64 of shape \[1, 4"),
        (models.booster(3), np.zeros(3), r"A single row has the shape \[1, 3\]"),
        (models.booster(3), np.zeros((0, 3)), "no rows"),
        (models.booster(3), np.zeros(()), r"shape \[-1, 3\]"),
        (models.booster(3), np.array([["a", "b", "c"]]), "takes numbers"),
        (IMAGE, np.zeros((1, 2, 2)), r"Input image takes FP32 of shape \[-1, 2, 2\]; got FP64"),
        (
            models.graph(TensorSpec("a", "FP32", (-1,)), TensorSpec("b", "FP32", (-1,))),
            np.zeros(1),
            "a is missing",
        ),
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit_are_refused(model: ServedModel, array: NDArray[Any], message: str) -> None:
    """The error says what is taken and what came."""
    read = made(model, content_type=NPY)

    with pytest.raises(InvalidInputs, match=message) as raised:
        read.decode_request(saved(array))

    assert orjson.loads(read.encode_error(raised.value).body)["error"]["status"] == "INVALID_ARGUMENT"


def test_the_open_inference_protocols_form_is_read() -> None:
    """JSON with tensors behind it, or JSON alone; the outputs it asks for are those of the answer."""
    image = np.ones((1, 2, 2), np.float32)
    head = {
        "inputs": [
            {"name": "image", "shape": [1, 2, 2], "datatype": "FP32", "parameters": {"binary_data_size": 16}}
        ],
        "outputs": [{"name": "y"}],
    }
    text = orjson.dumps(head)
    read = made(IMAGE, content_type=BINARY, json_bytes=len(text))

    asked = read.decode_request(text + image.tobytes())

    assert isinstance(asked.instances, dict)
    np.testing.assert_array_equal(asked.instances["image"], image)
    answer = {"y": np.array([1.5], np.float32), "z": np.array([2.0])}
    assert read.encode_response(asked, answer) == (200, b'{"predictions":[{"y":1.5}]}', ())
    assert np.load(io.BytesIO(written(answer, NPY, asked)[1])).tolist() == [1.5]
    with pytest.raises(InvalidInputs, match="Inference-Header-Content-Length is"):
        read.decode_request(text[:5])


# ---- answers


def test_answers_are_as_they_are_wanted() -> None:
    """The body of the request has nothing to do with it."""
    rows = np.array([[1.0, 2.0], [3.0, 4.0]])

    asked = made(models.booster(3), accept=NPY).decode_request(b'{"instances":[[1,2,3]]}')
    headers, body = written(rows, NPY, asked)
    assert headers == {b"content-type": b"application/x-npy"}
    np.testing.assert_array_equal(np.load(io.BytesIO(body)), rows)

    headers, body = written(rows, BINARY)
    end = int(headers[b"inference-header-content-length"])
    assert headers[b"content-type"] == b"application/octet-stream"
    assert orjson.loads(body[:end])["outputs"] == [
        {"name": "predictions", "datatype": "FP64", "shape": [2, 2], "parameters": {"binary_data_size": 32}}
    ]
    assert body[end:] == rows.tobytes()

    assert written(rows, "") == ({}, b'{"predictions":[[1.0,2.0],[3.0,4.0]]}')


@pytest.mark.parametrize(
    ("predictions", "read"),
    [
        ([1, 2], [1, 2]),
        (["setosa", "virginica"], ["setosa", "virginica"]),
        ([{"a": 1}, None], ['{"a":1}', "null"]),
        ({"y": np.array([True, False])}, [True, False]),
        (WholeTensors({"y": np.float32(1.5) * np.ones(())}), 1.5),
    ],
)
def test_whatever_is_predicted_goes_into_an_array(predictions: Batch, read: Any) -> None:
    """What is neither number nor text goes as JSON's text of it."""
    assert np.load(io.BytesIO(written(predictions, NPY)[1]), allow_pickle=False).tolist() == read


def test_several_outputs_are_fields() -> None:
    """Of one record for each prediction."""
    predictions: Batch = {"label": np.array([b"a", b"b"], object), "score": np.array([0.5, 1.0], np.float32)}

    records = np.load(io.BytesIO(written(predictions, NPY)[1]))

    assert records["label"].tolist() == ["a", "b"]
    assert records["score"].tolist() == [0.5, 1.0]
    with pytest.raises(InvalidOutputs, match="do not go into one array"):
        written(WholeTensors({"a": np.zeros(2), "b": np.zeros(3)}), NPY)
