"""Models of messages, found in their bytes as protobuf would find them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.errors import InvalidArgument
from serving.protocols import protos
from serving.protocols.model_spec import _PARSERS, ModelSpec, extract_model_spec
from serving.protocols.protobuf_fields import (
    BYTES,
    MalformedProtobuf,
    encode_field_prefix,
    encode_varint,
    iter_fields,
    read_varint,
    to_signed_int64,
)

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=100)
NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1)
WITH_SPECS = [name for name in _PARSERS if name.startswith("tensorflow") and "Multi" not in name]
WITH_NAMES = [name for name in _PARSERS if name.startswith("inference") and "Repository" not in name]


def new(message: str, /, **values: Any) -> Any:
    return protos.load_message_class(message)(**values)


def spec(model: str, version: int | None = None, label: str | None = None) -> Any:
    made = new("tensorflow.serving.ModelSpec", name=model, signature_name="serve")
    if version is not None:
        made.version.value = version
    if label is not None:
        made.version_label = label
    return made


@pytest.mark.parametrize("message", WITH_SPECS)
@settings(max_examples=30)
@given(model=NAMES, version=NUMBERS | st.none(), label=NAMES | st.none())
def test_specs_are_found(message: str, model: str, version: int | None, label: str | None) -> None:
    """Name, version or label are what was written; of version and label, the last counts."""
    request = new(message, model_spec=spec(model, version, label))
    wanted = ModelSpec(model, "" if version is None or label is not None else str(version), label or "")

    assert extract_model_spec(message, request.SerializeToString()) == wanted


@pytest.mark.parametrize("message", WITH_NAMES)
@settings(max_examples=30)
@given(model=NAMES, version=NAMES)
def test_names_are_found(message: str, model: str, version: str) -> None:
    """Those of the Open Inference Protocol stand in the message itself."""
    field = "model_" if message == "inference.ModelInferRequest" else ""
    request = new(message, **{f"{field}name": model, f"{field}version": version})

    assert extract_model_spec(message, bytearray(request.SerializeToString())) == ModelSpec(model, version)


@pytest.mark.parametrize("kind", ["Load", "Unload"])
@given(repository=NAMES, model=NAMES)
def test_names_behind_those_of_repositories(kind: str, repository: str, model: str) -> None:
    """As Triton has them."""
    message = f"inference.RepositoryModel{kind}Request"
    request = new(message, repository_name=repository, model_name=model)

    assert extract_model_spec(message, request.SerializeToString()) == ModelSpec(model)


def test_all_else_is_passed_over() -> None:
    """Tensors may come first, and a spec may come in parts."""
    tensors = new("tensorflow.serving.PredictRequest", output_filter=["y"])
    for name in "abc":
        tensors.inputs[name].tensor_content = b"\x0a" * 1000
    parts = [new("tensorflow.serving.PredictRequest", model_spec=one) for one in (spec("m"), spec("", 7))]
    body = b"".join(one.SerializeToString() for one in (tensors, *parts))

    assert extract_model_spec("tensorflow.serving.PredictRequest", body) == ModelSpec("m", "7")
    assert extract_model_spec("tensorflow.serving.PredictRequest", tensors.SerializeToString()) == ModelSpec(
        ""
    )


def test_tasks_are_for_one_model() -> None:
    """The tasks of a MultiInferenceRequest must agree."""
    message = "tensorflow.serving.MultiInferenceRequest"
    request = new(message)
    for signature in ("classify", "regress"):
        request.tasks.add(model_spec=spec("m", 3)).model_spec.signature_name = signature
    request.input.example_list.examples.add()
    assert extract_model_spec(message, request.SerializeToString()) == ModelSpec("m", "3")
    assert extract_model_spec(message, b"") == ModelSpec("")

    for more in (spec("m"), spec("other", label="canary"), spec("m", 3)):
        request.tasks.add(model_spec=more)
    with pytest.raises(InvalidArgument, match=r"they name m \(version 3\), m, other \(label canary\)\. Send"):
        extract_model_spec(message, request.SerializeToString())


def test_only_the_first_fields_are_looked_at() -> None:
    """A message of a million fields does not keep the gateway busy."""
    name = new("inference.ModelInferRequest", model_name="m").SerializeToString()
    many = new("inference.ModelInferRequest", raw_input_contents=[b""] * 1_000_000).SerializeToString()

    assert extract_model_spec("inference.ModelInferRequest", name + many) == ModelSpec("m")
    assert extract_model_spec("inference.ModelInferRequest", many + name) == ModelSpec("")

    message = "tensorflow.serving.MultiInferenceRequest"
    request = new(message)
    for _ in range(65):
        request.tasks.add()
    with pytest.raises(InvalidArgument, match="The request has 65 tasks or more; it can have 64"):
        extract_model_spec(message, request.SerializeToString())
    task = encode_field_prefix(1, 2_000_000) + b"\x10\x00" * 1_000_000
    assert extract_model_spec(message, task) == ModelSpec("")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"\x0a", "a number is cut short"),
        (b"\x0a\x05ab", "field 1 is cut short"),
        (b"\x0d\x00", "field 1 is cut short"),
        (b"\x0b", "field 1 is of a kind that is not used, 3"),
        (b"\xff" * 11, "a number is cut short"),
        (b"\x0a\x03\x0a\x01\xff", "invalid start byte"),
    ],
)
def test_damaged_messages_are_refused(body: bytes, why: str) -> None:
    """The error says what it was taken for, and what is wrong."""
    with pytest.raises(InvalidArgument, match=f"cannot be read as tensorflow.serving.PredictRequest.*{why}"):
        extract_model_spec("tensorflow.serving.PredictRequest", body)


def test_long_names_are_refused() -> None:
    """Nothing is called so, and nothing remembers it."""
    body = new("tensorflow.serving.PredictRequest", model_spec=spec("m" * 5000)).SerializeToString()
    with pytest.raises(InvalidArgument, match="no model is called that"):
        extract_model_spec("tensorflow.serving.PredictRequest", body)


@pytest.mark.parametrize("message", sorted(_PARSERS))
@settings(max_examples=50)
@given(body=st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(message: str, body: bytes) -> None:
    """And where protobuf reads a message, so do we, except for groups, which nobody has sent for years."""
    try:
        found = extract_model_spec(message, body)
    except InvalidArgument as error:
        if "not used" not in str(error) and "alike" not in str(error):
            with pytest.raises(protos.MessageDecodeError):
                protos.load_message_class(message).FromString(body)
    else:
        assert isinstance(found, ModelSpec)


@given(number=st.integers(1, (1 << 29) - 1), value=st.binary(max_size=300))
def test_prefixes_are_read_again(number: int, value: bytes) -> None:
    """What is put in front of bytes makes a field of them."""
    data = encode_field_prefix(number, len(value)) + value
    (field,) = iter_fields(data)
    assert (field.number, field.wire_type, data[field.start : field.end]) == (number, BYTES, value)


@given(st.integers(0, (1 << 64) - 1))
def test_numbers_are_read_again(value: int) -> None:
    data = encode_varint(value)
    assert read_varint(data, 0, len(data)) == (value, len(data))
    assert to_signed_int64(value) % (1 << 64) == value
    with pytest.raises(MalformedProtobuf):
        read_varint(data, 0, len(data) - 1)
