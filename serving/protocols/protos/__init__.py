"""The protobuf messages of other people's protocols, by name.

They live in a descriptor pool of their own: nothing collides with `tensorflow_serving`, `tritonclient`
or TensorFlow in the same process. `make protos` compiles `protos.binpb` from the .proto files beside it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    wrappers_pb2,
)
from google.protobuf.message import DecodeError


def serialize_input_examples(given: Any) -> list[bytes]:
    """Serialize the examples of a parsed tensorflow.serving.Input.

    The features of a context apply to every example that has none of that name: of the entries of a map that
    have one key, the last counts, so that they can be put in front.
    """
    kind = given.WhichOneof("kind")
    if kind is None:
        return []
    found = getattr(given, kind)
    context = found.context.SerializeToString() if kind == "example_list_with_context" else b""
    return [context + example.SerializeToString() for example in found.examples]


COMPILED_PROTOS = Path(__file__).with_name("protos.binpb")

MessageDecodeError: type[Exception] = (
    DecodeError  # what parsing raises for bytes that are no message of that kind
)


@cache
def load_descriptor_pool() -> Any:
    """The pool has all files, among them those of Any and of the wrapped numbers."""
    found = descriptor_pool.DescriptorPool()
    for known in (any_pb2, wrappers_pb2):
        found.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    for file in descriptor_pb2.FileDescriptorSet.FromString(COMPILED_PROTOS.read_bytes()).file:
        found.Add(file)
    return found


@cache
def load_message_class(name: str) -> Any:
    """Return the class of a message by its full name, such as `tensorflow.serving.PredictRequest`.

    Raises KeyError.
    """
    return message_factory.GetMessageClass(load_descriptor_pool().FindMessageTypeByName(name))
