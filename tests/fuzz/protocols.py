"""Requests of every protocol that are nearly right, answered by real models."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import msgspec

from serving.model_schema import ModelSchema
from serving.node.codecs import CodecCache, ServedModel
from serving.node.warmup import grpc_warmup, protocol_warmup
from serving.protocols import DEFAULT_METADATA, RequestMetadata
from serving.runtimes import Runtime
from serving.runtimes.json_codec import InstancesDecoder
from tests.fuzz import making
from tests.fuzz.judging import refused

# A model, a call, and a body.
Given = tuple[str, RequestMetadata, bytes]


class Asking:
    """Asks models what nodes ask themselves, with a few bytes changed."""

    def __init__(self, runtimes: Mapping[str, Runtime]) -> None:
        schemas = {name: runtime.infer_schema() for name, runtime in runtimes.items()}
        self._runtimes = runtimes
        self._good = [
            (name, call, body) for name, schema in schemas.items() for call, body in _questions(schema)
        ]
        self._readers = {
            name: CodecCache(ServedModel(runtime, schemas[name], InstancesDecoder())).get_or_create
            for name, runtime in runtimes.items()
        }

    def make(self, random: Random) -> Given:
        """Often the JSON ends elsewhere than the call says."""
        name, call, body = random.choice(self._good)
        end = call.json_bytes
        if end is not None and random.random() < 0.2:
            call = msgspec.structs.replace(call, json_bytes=random.choice((0, 1, end - 1, end + 1, 1 << 40)))
        return name, call, making.mutated(random, body)

    def attempt(self, given: Given) -> None:
        """Whatever comes is answered, or it is said what is wrong with it, as the protocol does."""
        name, call, body = given
        reader, runtime = self._readers[name](call), self._runtimes[name]

        def does() -> None:
            asked = reader.decode_request(body)
            answer = reader.encode_response(asked, runtime.predict(asked.instances, **asked.parameters))
            assert answer.status == 200

        refused(does)


def _questions(schema: ModelSchema) -> list[tuple[RequestMetadata, bytes]]:
    asked = [*protocol_warmup.make_http_examples(schema), *grpc_warmup.make_grpc_examples(schema)]
    return [(question.call, question.body) for question in asked if question.call is not DEFAULT_METADATA]
