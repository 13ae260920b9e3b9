"""Model metadata of TensorFlow Serving's gRPC API: signatures, and the states of versions.

The messages of `tensorflow_metadata`, in protobuf.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from serving.errors import InvalidArgument
from serving.model_schema import ModelSchema, ModelSignature, TensorSpec
from serving.protocols.addresses import extract_version_number
from serving.protocols.protos import MessageDecodeError, load_descriptor_pool, load_message_class
from serving.protocols.tensorflow_metadata import VersionStatus, sort_newest_first, to_tensorflow_dtype

_PACKAGE = "tensorflow.serving."
_SIGNATURES = "signature_def"
# Bytes of a request: millions of field names would keep the server busy for seconds.
_MAX_REQUEST_BYTES = 1 << 14
# Of tensorflow.error.Code.
_OK, _UNKNOWN = 0, 2


def check_metadata_request(body: bytes) -> None:
    """Raise InvalidArgument if a GetModelMetadataRequest asks for anything else than signatures."""
    kind = load_message_class(_PACKAGE + "GetModelMetadataRequest")
    if len(body) > _MAX_REQUEST_BYTES:
        raise InvalidArgument(
            f"The {kind.DESCRIPTOR.full_name} has {len(body)} bytes; it can have {_MAX_REQUEST_BYTES}."
        )
    try:
        wanted = set(kind.FromString(body).metadata_field)
    except MessageDecodeError as error:
        raise InvalidArgument(f"The message cannot be read as {kind.DESCRIPTOR.full_name}.") from error
    if wanted != {_SIGNATURES}:
        named = ", ".join(sorted(wanted)) or "nothing"
        raise InvalidArgument(f"metadata_field names {named}; {_SIGNATURES} is all there is to ask for.")


def encode_metadata_response(model: str, version: str, schema: ModelSchema) -> bytes:
    """Encode a GetModelMetadataResponse; `version` is an id."""
    signatures = load_message_class(_PACKAGE + "SignatureDefMap")()
    for name, signature in schema.signatures.items():
        _fill_signature_def(signatures.signature_def[name], signature)
    answer = load_message_class(_PACKAGE + "GetModelMetadataResponse")()
    answer.model_spec.name = model
    if known := extract_version_number(version):
        answer.model_spec.version.value = int(known)
    answer.metadata[_SIGNATURES].Pack(signatures)
    return _serialize_message(answer)


def encode_status_response(standings: Iterable[VersionStatus]) -> bytes:
    """Encode a GetModelStatusResponse. The version of those that have no number is 0."""
    answer = load_message_class(_PACKAGE + "GetModelStatusResponse")()
    for one in sort_newest_first(standings):
        added = answer.model_version_status.add(version=int(extract_version_number(one.version) or 0))
        added.state = added.State.Value(one.state)
        added.status.error_code = _UNKNOWN if one.error else _OK
        added.status.error_message = one.error
    return _serialize_message(answer)


def _fill_signature_def(definition: Any, signature: ModelSignature) -> None:
    definition.method_name = signature.method
    for tensors, infos in ((signature.inputs, definition.inputs), (signature.outputs, definition.outputs)):
        for tensor in tensors:
            _fill_tensor_info(infos[tensor.name], tensor)


def _fill_tensor_info(info: Any, tensor: TensorSpec) -> None:
    info.name = tensor.tensor
    info.dtype = (
        load_descriptor_pool()
        .FindEnumTypeByName("tensorflow.DataType")
        .values_by_name[to_tensorflow_dtype(tensor)]
        .number
    )
    info.tensor_shape.unknown_rank = tensor.shape is None
    for size in tensor.shape or ():
        info.tensor_shape.dim.add(size=size)


def _serialize_message(answer: Any) -> bytes:
    serialised: bytes = answer.SerializeToString()
    return serialised
