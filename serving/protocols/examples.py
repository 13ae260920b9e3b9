"""tf.Example messages of a request, as the bytes that a graph takes; nothing looks into them but protobuf."""

from __future__ import annotations

from typing import Any


def serialize_examples(given: Any) -> list[bytes]:
    """The examples of a tensorflow.serving.Input, which is parsed, as bytes; none if it has none.

    The features of a context hold for every example that has none of that name: of the entries of a map that
    have one key, the last counts, so that they can be put in front.
    """
    kind = given.WhichOneof("kind")
    if kind is None:
        return []
    found = getattr(given, kind)
    context = found.context.SerializeToString() if kind == "example_list_with_context" else b""
    return [context + example.SerializeToString() for example in found.examples]
