"""What TensorFlow Serving's gRPC API tells of a model: its signatures, and the states of its versions.

The messages of `tensorflow_status`, in protobuf.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from serving.errors import InvalidArgument
from serving.protocols.addresses import number
from serving.protocols.protos import Malformed, message, pool
from serving.protocols.tensorflow_status import Standing, dtype, newest_first
from serving.schema import ModelSchema, ModelSignature, TensorSpec

_SERVING = "tensorflow.serving."
_SIGNATURES = "signature_def"
# Bytes of a question, which names a model and that: millions of names would keep the server busy for seconds.
_LONGEST = 1 << 14
# Of tensorflow.error.Code.
_OK, _UNKNOWN = 0, 2


def check_metadata_request(body: bytes) -> None:
    """Raise InvalidArgument if a GetModelMetadataRequest asks for anything else than signatures."""
    kind = message(_SERVING + "GetModelMetadataRequest")
    if len(body) > _LONGEST:
        raise InvalidArgument(
            f"The {kind.DESCRIPTOR.full_name} has {len(body)} bytes; it can have {_LONGEST}."
        )
    try:
        wanted = set(kind.FromString(body).metadata_field)
    except Malformed as error:
        raise InvalidArgument(f"The message cannot be read as {kind.DESCRIPTOR.full_name}.") from error
    if wanted != {_SIGNATURES}:
        named = ", ".join(sorted(wanted)) or "nothing"
        raise InvalidArgument(f"metadata_field names {named}; {_SIGNATURES} is all there is to ask for.")


def metadata(model: str, version: str, schema: ModelSchema) -> bytes:
    """A GetModelMetadataResponse; `version` is an id."""
    signatures = message(_SERVING + "SignatureDefMap")()
    for name, signature in schema.signatures.items():
        _describe(signatures.signature_def[name], signature)
    answer = message(_SERVING + "GetModelMetadataResponse")()
    answer.model_spec.name = model
    if known := number(version):
        answer.model_spec.version.value = int(known)
    answer.metadata[_SIGNATURES].Pack(signatures)
    return _bytes(answer)


def status(standings: Iterable[Standing]) -> bytes:
    """A GetModelStatusResponse. The version of those that have no number is 0."""
    answer = message(_SERVING + "GetModelStatusResponse")()
    for one in newest_first(standings):
        told = answer.model_version_status.add(version=int(number(one.version) or 0))
        told.state = told.State.Value(one.state)
        told.status.error_code = _UNKNOWN if one.error else _OK
        told.status.error_message = one.error
    return _bytes(answer)


def _describe(definition: Any, signature: ModelSignature) -> None:
    """Fill a SignatureDef."""
    definition.method_name = signature.method
    for tensors, infos in ((signature.inputs, definition.inputs), (signature.outputs, definition.outputs)):
        for tensor in tensors:
            _describe_tensor(infos[tensor.name], tensor)


def _describe_tensor(info: Any, tensor: TensorSpec) -> None:
    """Fill a TensorInfo."""
    info.name = tensor.tensor
    info.dtype = pool().FindEnumTypeByName("tensorflow.DataType").values_by_name[dtype(tensor)].number
    info.tensor_shape.unknown_rank = tensor.shape is None
    for size in tensor.shape or ():
        info.tensor_shape.dim.add(size=size)


def _bytes(answer: Any) -> bytes:
    serialised: bytes = answer.SerializeToString()
    return serialised
