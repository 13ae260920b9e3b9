"""What TensorFlow Serving's gRPC API tells of models: the same as its REST API."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import json_format

from serving.errors import InvalidArgument
from serving.model_schema import ModelSchema, ModelSignature, TensorSpec
from serving.protocols import tensorflow_metadata, tensorflow_metadata_grpc
from serving.protocols.protos import load_message_class
from serving.protocols.tensorflow_metadata import ServableState, VersionStatus
from tests.serving.protocols.test_tensorflow_metadata import FLOWERS

ODD = ModelSchema(
    "tensorflow_savedmodel",
    {"s": ModelSignature((TensorSpec("q", "QINT8", (2,)), TensorSpec("c", "COMPLEX64", ())), ())},
    default="s",
)


def as_json(found: Any) -> Any:
    return json_format.MessageToDict(
        found, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def test_states_are_those_of_rest() -> None:
    """But for versions without a number, which gRPC cannot name."""
    standings = [
        VersionStatus("v2", ServableState.AVAILABLE),
        VersionStatus("v10", ServableState.END, "No such file."),
    ]
    told = load_message_class("tensorflow.serving.GetModelStatusResponse").FromString(
        tensorflow_metadata_grpc.encode_status_response(standings)
    )

    assert as_json(told) == tensorflow_metadata.render_status(standings)

    canary = tensorflow_metadata_grpc.encode_status_response([VersionStatus("canary", ServableState.LOADING)])
    (one,) = (
        load_message_class("tensorflow.serving.GetModelStatusResponse")
        .FromString(canary)
        .model_version_status
    )
    assert (one.version, one.state) == (0, one.LOADING)


@pytest.mark.parametrize("schema", [FLOWERS, ODD])
def test_signatures_are_those_of_rest(schema: ModelSchema) -> None:
    """With names, types and shapes."""
    raw = tensorflow_metadata_grpc.encode_metadata_response("flowers", "v7", schema)
    told = load_message_class("tensorflow.serving.GetModelMetadataResponse").FromString(raw)
    assert (told.model_spec.name, told.model_spec.version.value) == ("flowers", 7)

    signatures = load_message_class("tensorflow.serving.SignatureDefMap")()
    assert told.metadata["signature_def"].Unpack(signatures)
    found = as_json(signatures)
    wanted = tensorflow_metadata.render_metadata("flowers", "v7", schema)
    assert found == wanted["metadata"]["signature_def"]


def test_versions_without_a_number_are_not_told() -> None:
    raw = tensorflow_metadata_grpc.encode_metadata_response("flowers", "canary", FLOWERS)
    told = load_message_class("tensorflow.serving.GetModelMetadataResponse").FromString(raw)
    assert not told.model_spec.HasField("version")


def test_only_signatures_can_be_asked_for() -> None:
    """The error says so."""
    request = load_message_class("tensorflow.serving.GetModelMetadataRequest")
    tensorflow_metadata_grpc.check_metadata_request(
        request(metadata_field=["signature_def"]).SerializeToString()
    )

    for wanted, named in (([], "nothing"), (["signature_def", "weather"], "signature_def, weather")):
        with pytest.raises(InvalidArgument, match=f"metadata_field names {named}; signature_def is all"):
            tensorflow_metadata_grpc.check_metadata_request(
                request(metadata_field=wanted).SerializeToString()
            )
    with pytest.raises(InvalidArgument, match="cannot be read as tensorflow"):
        tensorflow_metadata_grpc.check_metadata_request(b"\xff")


def test_a_question_is_short() -> None:
    """A long one is not read: the server would be busy with nothing else for seconds."""
    many = b"".join(b"\x12\x05%05d" % number for number in range(10_000))

    with pytest.raises(InvalidArgument, match="GetModelMetadataRequest has 70000 bytes; it can have 16384"):
        tensorflow_metadata_grpc.check_metadata_request(many)
