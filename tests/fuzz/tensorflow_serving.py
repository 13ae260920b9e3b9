"""Bodies of TensorFlow Serving's REST API, held to be read the same with and without Python's numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from serving.model_schema import ModelSignature, TensorSpec
from serving.node.codecs import DecodedRequest, ServedModel
from serving.node.codecs.tensorflow_rest import create_codec
from serving.protocols import Dialect, RequestMetadata
from serving.runtimes.instance_batch import WholeTensors
from serving.runtimes.json_codec import InstancesDecoder
from tests.fuzz import making
from tests.fuzz.judging import refused, same
from tests.serving.node.codecs import models

_ROWS = TensorSpec("x", "FP32", (-1, 4))
_INTEGERS = TensorSpec("x", "INT8", (-1, -1))
_ANY = TensorSpec("x", "FP64", None)
_TEXT = TensorSpec("s", "BYTES", (-1,))
_EXAMPLES = ModelSignature((_TEXT,), (TensorSpec("outputs", "FP32", (-1,)),))

_MODELS: Mapping[str, ServedModel] = {
    "rows": models.graph(_ROWS, examples=_EXAMPLES),
    "whole": models.graph(_INTEGERS, examples=_EXAMPLES),
    "numbers": models.graph(_ANY),
    "texts": models.graph(_TEXT),
    "objects": models.graph(_ANY, _TEXT),
    "booster": models.booster(4),
    "mixed": models.mixed(),
    "routine": models.routine(),
}
_WITH_EXAMPLES = ("rows", "whole")
_VERBS = ("predict", "predict", "predict", "classify", "regress")
_SIGNATURES = ("serving_default", "examples", "", "none")
_FEATURES = ('{"x": 1.5}', '{"x": [1, 2], "s": {"b64": "QUJD"}}', "{}")


class _Declining(InstancesDecoder):
    """Reads nothing without Python's numbers."""

    def decode_regular(self, *_: Any) -> None:
        return None


_DECLINING = _Declining()


def make(random: Random) -> tuple[str, str, bytes]:
    """A model, a verb, and a body."""
    name, verb = random.choice(tuple(_MODELS)), random.choice(_VERBS)
    fields = [_tensors(random, name)]
    if verb != "predict":
        name = random.choice(_WITH_EXAMPLES) if random.random() < 0.9 else name
        fields = [_examples(random), '"signature_name": "examples"']
    elif random.random() < 0.3:
        fields.append(f'"signature_name": {json.dumps(random.choice(_SIGNATURES))}')
    while random.random() < 0.15:
        key = random.choice(("inputs", "instances", "signature_name", "context", "other"))
        fields.append(f"{json.dumps(key)}: {making.value(random, 2)}")
    random.shuffle(fields)
    text = "{" + ", ".join(fields) + "}"
    if random.random() < 0.1:
        text = text.replace("2.5", random.choice(("NaN", "-Infinity", "Infinity")))
    if random.random() < 0.3:
        # Long bodies take another way than short ones.
        text += " " * 600
    return name, verb, making.mutated(random, text.encode("utf-8", "surrogatepass"))


def attempt(given: tuple[str, str, bytes]) -> None:
    """It is read, in both ways as the same, or refused by both."""
    name, verb, body = given
    model = _MODELS[name]
    call = RequestMetadata(Dialect.TENSORFLOW, verb)
    found: list[DecodedRequest] = []
    wrong = [
        refused(partial(_read, call, way, body, found)) for way in (model, replace(model, decoder=_DECLINING))
    ]
    assert wrong in ([True, True], [False, False]), wrong
    if found:
        one, other = found
        assert (one.state, one.parameters) == (other.state, other.parameters)
        assert type(one.instances) is type(other.instances)
        same(_columns(one.instances), _columns(other.instances))


def _read(call: RequestMetadata, model: ServedModel, body: bytes, found: list[DecodedRequest]) -> None:
    found.append(create_codec(call, model).decode_request(body))


def _columns(batch: Any) -> Any:
    return batch.values if isinstance(batch, WholeTensors) else batch


def _tensors(random: Random, name: str) -> str:
    like = making.LIKE[name if name in making.LIKE else "rows"]
    rows = "[" + ",".join(like(random) for _ in range(random.choice((1, 2, 3, 40)))) + "]"
    match random.randrange(5):
        case 0 | 1:
            return f'"instances": {rows}'
        case 2:
            return f'"inputs": {rows}'
        case 3:
            return '"inputs": {"x": ' + rows + random.choice(("}", ', "s": ["a", {"b64": "QUJD"}]}'))
        case _:
            return f'"inputs": {making.value(random, 3)}'


def _examples(random: Random) -> str:
    features = (
        random.choice(_FEATURES) if random.random() < 0.8 else making.value(random, 3)
        for _ in range(random.choice((1, 2, 3)))
    )
    return f'"examples": [{", ".join(features)}]'
