from __future__ import annotations

import base64
from typing import Any

import orjson
import pytest

from serving.errors import BodyTooLarge, InvalidArgument
from serving.gateway.console.prediction_form.file_inputs import (
    MAX_FILE_BYTES,
    FileInput,
    decode_file,
    insert_file,
    list_file_inputs,
)
from serving.model_schema import ModelSchema, ModelSignature, TensorSpec, schema_to_json

PICTURE = TensorSpec("image", "BYTES", (-1,))
NUMBER = TensorSpec("n", "FP32", (-1,))
CONTENT = bytes(range(256))
ENCODED = {"b64": base64.b64encode(CONTENT).decode()}


def schema(platform: str = "tensorflow_savedmodel", *, strict: bool = True, **signatures: Any) -> Any:
    rendered = {name: ModelSignature(tuple(inputs), ()) for name, inputs in signatures.items()}
    found = ModelSchema(platform, rendered, next(iter(rendered)), strict=strict)
    return orjson.loads(orjson.dumps(schema_to_json(found)))


def test_inputs_that_take_bytes() -> None:
    """One value for each instance, or a list of one; of other signatures those with other names."""
    listed = TensorSpec("listed", "BYTES", (-1, 1))
    open_shape = TensorSpec("open", "BYTES", None)
    words = TensorSpec("words", "BYTES", (-1, 5))
    found = list_file_inputs(schema(a=[NUMBER, PICTURE, listed, words], b=[PICTURE, open_shape]))

    assert found == [FileInput("image"), FileInput("listed", is_list=True), FileInput("open", "b")]
    assert [one.label for one in found] == ["image", "listed", "open (signature b)"]


def test_models_that_take_no_bytes() -> None:
    """Rows of scikit-learn are lists; of user code its declaration counts."""
    assert list_file_inputs(schema("sklearn", a=[PICTURE])) == ()
    assert list_file_inputs(schema("custom", strict=False, a=[PICTURE])) == [FileInput("image")]
    unknown = TensorSpec("instances", "BYTES", None)
    assert list_file_inputs(schema("custom", strict=False, a=[unknown])) == []
    assert list_file_inputs(schema(a=[NUMBER])) == []


def test_many_inputs_are_not_all_offered() -> None:
    assert len(list_file_inputs(schema(a=[TensorSpec(f"i{n}", "BYTES", (-1,)) for n in range(50)]))) == 8


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("padding", ["=", ""])
def test_files_arrive_in_either_alphabet(encode: Any, padding: str) -> None:
    for size in (1, 2, 3, 256):
        text = encode(CONTENT[-size:]).decode()
        assert decode_file(text if padding else text.rstrip("=")) == CONTENT[-size:]


def test_files_that_are_none() -> None:
    with pytest.raises(InvalidArgument, match="choose it again"):
        decode_file("no base64!")
    assert len(decode_file(base64.b64encode(bytes(MAX_FILE_BYTES)).decode())) == MAX_FILE_BYTES
    with pytest.raises(BodyTooLarge, match=r"2,097,153 bytes.*takes 2,097,152"):
        decode_file(base64.b64encode(bytes(MAX_FILE_BYTES + 1)).decode())


@pytest.mark.parametrize(
    ("request_body", "file_input", "expected"),
    [
        ({}, FileInput("image"), {"instances": [{"image": ENCODED}]}),
        (
            {"instances": [{"image": "old", "n": 1}, {"image": "x", "n": 2}]},
            FileInput("image"),
            {"instances": [{"image": ENCODED, "n": 1}, {"image": "x", "n": 2}]},
        ),
        ({"instances": [{"b64": "AA=="}]}, FileInput("image"), {"instances": [{"image": ENCODED}]}),
        ({"instances": ["text"]}, FileInput("image", is_list=True), {"instances": [{"image": [ENCODED]}]}),
        (
            {"instances": [{"n": 1}], "user": 1},
            FileInput("image", "b"),
            {"instances": [{"image": ENCODED}], "user": 1, "signature_name": "b"},
        ),
        (
            {"instances": [{"k": 1}], "signature_name": "b"},
            FileInput("image", "b"),
            {"instances": [{"k": 1, "image": ENCODED}], "signature_name": "b"},
        ),
    ],
)
def test_the_first_instance_gets_the_bytes(request_body: Any, file_input: FileInput, expected: Any) -> None:
    assert insert_file(request_body, file_input, CONTENT, "a") == expected
