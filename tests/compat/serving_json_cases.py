"""The cases of TensorFlow Serving's json_tensor_test.cc as requests over HTTP: what is sent and answered.

There a case turns JSON into messages, or messages into JSON. Here a signature of `serving_models` answers
what it was given, or what the case writes, so that the answer tells of both.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from serving.protocols.protos import load_message_class

NAN, INFINITY = float("nan"), float("inf")
HELLO, WORLD, TF, SERVING = (
    {"b64": base64.b64encode(word).decode()} for word in (b"hello", b"world", b"tf", b"serving")
)
LARGEST, SMALLEST = 1.7976931348623157e308, 2.2250738585072014e-308  # of float64
DEPTH = 500_000


@dataclass(frozen=True)
class Case:
    """One of TensorFlow Serving's, by the name of its test.

    `answer` is what it answers, None for an error. `differs` is our own status where it is another one.
    """

    name: str
    body: str
    answer: Any = None
    verb: str = "predict"
    differs: int = 0

    @property
    def status(self) -> int:
        """What TensorFlow Serving's status is over HTTP."""
        return 400 if self.answer is None else 200


def cases() -> Sequence[Case]:
    """All of them, each with a name of its own."""
    found: list[Case] = []
    for case in (*_read(), *_written(), *_examples(), *_results()):
        number = sum(other.name.partition("#")[0] == case.name for other in found)
        name = f"{case.name}#{number + 1}" if number else case.name
        found.append(Case(name, case.body, case.answer, case.verb, case.differs))
    return found


def _body(signature: str, **fields: Any) -> str:
    return json.dumps({"signature_name": signature, **fields} if signature else fields)


def _read() -> Iterator[Case]:
    """JSON into tensors."""

    def rows(name: str, signature: str, given: Any, answer: Any = None, **more: Any) -> Case:
        return Case(name, _body(signature, instances=given), answer and {"predictions": answer}, **more)

    def columns(name: str, signature: str, given: Any, answer: Any = None) -> Case:
        return Case(name, _body(signature, inputs=given), answer and {"outputs": answer})

    pairs = [[1, 2], [3, 4], [5, 6]]
    yield rows("SingleUnnamedTensor", "", pairs, pairs)
    nested = "[" * DEPTH + "]" * DEPTH
    yield Case(
        "DeeplyNestedWellFormed", f'{{"instances":[1], "nested":{nested}}}', {"predictions": [1]}, differs=400
    )
    yield Case("DeeplyNestedMalformed", f'{{"signature_name":{nested}}}')
    mixed = [1, 2.0, 3, 4, 5.003, 0.007, 0.0]
    yield rows("MixedInputForFloatTensor", "float", mixed, mixed)
    mixed = [1.0, 2, 3, 4, 0.662, 0, 0.0]
    yield rows("MixedInputForDoubleTensor", "double", mixed, mixed)
    for number in (1435774380, 1435774380.0):
        yield rows("FloatTensorWithPrecisionLoss", "float", [number], [1435774336.0])
    for sign in (1, -1):
        yield rows("FloatTensorThatExceedsMaxReturnsInf", "float", [sign * LARGEST], [sign * INFINITY])
    for sign in (1, -1):
        yield rows("FloatTensorThatExceedsMinReturnsZero", "float", [sign * SMALLEST], [sign * 0.0])
    yield rows("SingleUnnamedTensorWithSignature", "predict_images", [[1, 2]], [[1, 2]])
    yield rows("TensorFromNonNullTerminatedBuffer", "", pairs, pairs)
    yield rows("SingleUnnamedTensorBase64Scalars", "string", [HELLO, WORLD], ["hello", "world"])
    yield rows("SingleUnnamedTensorBase64Lists", "string", [[HELLO], [WORLD]], [["hello"], ["world"]])
    named = [{"default": [[HELLO], [WORLD]]}]
    yield rows("SingleNamedTensorBase64", "string", named, [[["hello"], ["world"]]])
    first = {
        "int_tensor": pairs,
        "str_tensor": ["foo", "bar"],
        "float_tensor": [1.0, NAN],
        "dbl_tensor": [NAN],
    }
    second = {
        "int_tensor": [[7, 8], [9, 0], [1, 2]],
        "str_tensor": ["baz", "bat"],
        "float_tensor": [2.0, INFINITY],
        "dbl_tensor": [2.0],
    }
    yield rows("MultipleNamedTensor", "named", [first, second], [first, second])
    yield columns("SingleUnnamedTensorColumnarFormat", "column", {"int_tensor": [pairs]}, [pairs])
    yield columns("SingleUnnamedTensorColumnarFormat", "column", [pairs], [pairs])
    given = {"int_tensor": [pairs], "str_tensor": ["foo", "bar"]}
    yield columns(
        "MultipleNamedTensorColumnarFormat",
        "columns",
        {**given, "bin_tensor": HELLO},
        {**given, "bin_tensor": "hello"},
    )

    errors, ragged = "SingleUnnamedTensorErrors", [[1, 2], [3, 4], [5, 6, 7]]
    yield Case(errors, "")
    yield Case(errors, json.dumps({"signature_name": 5, "instances": ragged}))
    yield Case(errors, json.dumps({"instances": ragged, "inputs": ragged}))
    for instances in (ragged, [[1, 2], [3, 4], [[5, 6]]], [1, [1]], [[1, 2], ["a", "b"]]):
        yield rows(errors, "", instances)
    errors = "MultipleNamedTensorErrors"
    one = {"int_tensor": pairs, "str_tensor": ["foo", "bar"]}
    deeper = {"int_tensor": [[[7, 8], [9, 0], [1, 2]]], "str_tensor": ["baz", "bat"]}
    longer = {"int_tensor": [[1, 2], [3, 4], [5, 6], [7, 8]], "str_tensor": ["foo", "bar"]}
    other = {"int_tensor": [[7, 8], [9, 0], [1, 2]], "str_tensor": ["baz", "bat"]}
    for several in ([one, deeper], [longer, other], [one, [1, 20, 30], deeper]):
        yield rows(errors, "pair", several)
    yield rows(errors, "text", [["baz", "bar"], {"str_tensor": ["baz", "bat"]}])


def _written() -> Iterator[Case]:
    """Tensors into JSON."""

    def both(name: str, signature: str, value: Any, *, answer: Any = None) -> Iterator[Case]:
        told = value if answer is None else answer
        yield Case(name, _body(signature, instances=value), {"predictions": told})
        yield Case(name, _body(signature, inputs=value), {"outputs": told})

    block = [[[1, 2], [3, 4], [5, 6]], [[7, 8], [9, 0], [1, 2]]]
    yield from both("FromJsonSingleTensor", "column", block)
    yield from both("FromJsonSingleScalarTensor", "column", [1, 2, 3, 4, 5])
    texts = [["hello", "world"], ["tf", "serving"]]
    yield Case(
        "FromJsonSingleBytesTensor",
        _body("bytes", instances=texts),
        {"predictions": [[HELLO, WORLD], [TF, SERVING]]},
    )
    numbers = [[9000000, 999999, 0.5], [0.0003, 0.00003, 555557.5]]
    yield Case(
        "FromJsonSingleFloatTensorSixDigitPrecision",
        _body("float", instances=numbers),
        {"predictions": numbers},
    )
    numbers = [[NAN, INFINITY], [3, -INFINITY]]
    yield Case(
        "FromJsonSingleFloatTensorNonFinite", _body("float", instances=numbers), {"predictions": numbers}
    )
    for signature in ("nothing", "complex", "scalar"):
        yield Case("FromJsonSingleTensorErrors", _body(signature, instances=[1.0]))
    columns = {
        "int_tensor": block,
        "str_tensor": [["foo", "bar"], ["baz", "bat"]],
        "float_tensor": [[1.0], [2.0]],
        "double_scalar_tensor": [8.0, 9.0],
        "str_tensor_bytes": [[HELLO, WORLD], [TF, SERVING]],
    }
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    yield Case("FromJsonMultipleNamedTensors", _body("printed", instances=rows), {"predictions": rows})
    yield Case("FromJsonMultipleNamedTensors", _body("printed", inputs=columns), {"outputs": columns})
    for name, signature, told in (
        ("FromJsonMultipleNamedTensorsErrors", "uneven", None),
        ("FromJsonSingleZeroBatchTensor", "no_rows", []),
        ("FromJsonMultipleZeroBatchTensors", "no_rows_of_several", []),
        ("FromJsonMultipleZeroBatchTensorsErrors", "uneven_without_rows", None),
    ):
        yield Case(name, _body(signature, instances=[1.0]), None if told is None else {"predictions": told})


def _examples() -> Iterator[Case]:
    """Features into examples, for both of the verbs that take them."""
    for verb, signature in (("classify", "labelled"), ("regress", "summed")):
        plain = [
            {"names": ["foo", "bar"], "ratings": [8.0, 9.0], "age": 20},
            {"names": ["baz"], "ratings": 6.0},
        ]
        yield Case(
            f"RequestNoContext/{verb}",
            _body(signature, examples=plain),
            _answer(verb, [6 + 17 + 20, 3 + 6], plain),
            verb,
        )
        context = {"query": "pizza", "location": ["sfo"]}
        examples = [
            {"names": ["foo", "bar"], "ratings": [8.0, 9.0, NAN, INFINITY], "age": 20},
            {"names": ["baz", HELLO], "ratings": 6.0, "intboolmix": [1, True, False]},
            {"names": "bar", "ratings": -INFINITY},
        ]
        yield Case(
            f"RequestWithContextAndSignature/{verb}",
            _body(signature, context=context, examples=examples),
            _answer(verb, [NAN, 5 + 8 + 6 + 2, -INFINITY], [context | example for example in examples]),
            verb,
        )
        names = {"names": ["foo", "bar"]}
        values = ([10, None], [10, 10.0], [10, {"test": 10}], [[10], 20], [20, 18446744073709551603])
        wrong: list[dict[str, Any]] = [
            {"signature_name": ["hello"], "examples": [names]},
            {"signature_name": signature, "context": [names]},
            {"signature_name": signature, "examples": names},
            {"signature_name": signature, "examples": [[names]]},
            *({"signature_name": signature, "examples": [{"names": some}]} for some in values),
        ]
        for fields in wrong:
            yield Case(f"JsonErrors/{verb}", json.dumps(fields), verb=verb)


def _answer(verb: str, sums: Sequence[float], examples: Sequence[Mapping[str, Any]]) -> Any:
    """What the signature about examples answers: they themselves, or the sums of what is in them."""
    if verb == "regress":
        return {"results": list(sums)}
    told = [{name: _values(value) for name, value in example.items()} for example in examples]
    return {"results": [[[features, 0.0]] for features in told]}


def _values(given: Any) -> list[Any]:
    """The values of a feature, as an example has them."""
    values = given if isinstance(given, list) else [given]
    return [
        "hello" if value == HELLO else int(value) if isinstance(value, bool) else value for value in values
    ]


def features_of(label: str) -> dict[str, Any]:
    """The features of an example that came back as a label, as JSON has them; texts as text."""
    padded = label + "=" * (-len(label) % 4)
    example = load_message_class("tensorflow.Example").FromString(base64.urlsafe_b64decode(padded))
    found: dict[str, Any] = {}
    for name, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind")
        values = list(getattr(feature, kind).value)
        found[name] = [value.decode() for value in values] if kind == "bytes_list" else values
    return found


def _results() -> Iterator[Case]:
    """Classifications, regressions and errors into JSON."""

    def of(name: str, verb: str, signature: str, count: int, results: Any = None) -> Case:
        body = _body(signature, examples=[{"x": 1.0}] * count)
        return Case(name, body, results and {"results": results}, verb)

    vehicles = [
        [["car", 0.2], ["bike", 0.7], ["bus", 0.1]],
        [["car", 0.7], ["bike", 0.1], ["bus", 0.2]],
    ]
    yield of("JsonFromClassificationResult", "classify", "vehicles", 2, vehicles)
    yield of("JsonFromRegressionResult", "regress", "values", 3, [0.2, 0.9, 1.0])
    infinite = [0.2, INFINITY, 1.0, -INFINITY, NAN]
    yield of("JsonFromRegressionResultWithNonFinite", "regress", "infinite", 5, infinite)
    yield of("JsonFromResultErrors", "classify", "no_classes", 1)
    yield of("JsonFromResultErrors", "regress", "no_values", 1)
    yield Case("StatusOK", _body("", instances=[1]), {"predictions": [1]})
    yield Case("StatusError", _body('Bad key: "key"', instances=[1]))
    yield Case("StatusError", _body("Bad key: 'key'", instances=[1]))
