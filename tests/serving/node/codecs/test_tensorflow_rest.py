"""TensorFlow Serving's REST dialect, without a model: what is read, and what is written."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from serving.errors import FailedPrecondition, InvalidInputs, InvalidOutputs, ServingError
from serving.model_schema import CLASSIFY, REGRESS, ModelSignature, TensorSpec
from serving.node.codecs import DecodedRequest, ServedModel
from serving.node.codecs.tensorflow_rest import TensorLayout, create_codec
from serving.protocols import Dialect, RequestMetadata
from serving.protocols.protos import load_message_class
from serving.runtimes.instance_batch import Batch, WholeTensors
from tests.serving.node.codecs import models
from tests.serving.node.codecs.models import graph

PADDING = " " * 512  # makes a body long enough for the dense way
FLOATS = TensorSpec("x", "FP32", (-1, 2))
INTEGERS = TensorSpec("n", "INT32", (-1,))
TEXT = TensorSpec("s", "BYTES", (-1,))
EXAMPLES = TensorSpec("inputs", "BYTES", (-1,))
LABELS, SCORES = TensorSpec("classes", "BYTES", (-1, -1)), TensorSpec("scores", "FP32", (-1, -1))
VALUES = TensorSpec("outputs", "FP32", (-1, 1))


def read(model: ServedModel, body: Any, verb: str = "predict") -> DecodedRequest:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return create_codec(RequestMetadata(Dialect.TENSORFLOW, verb), model).decode_request(raw)


def refusal(model: ServedModel, body: Any, verb: str = "predict") -> str:
    with pytest.raises(InvalidInputs) as caught:
        read(model, body, verb)
    return caught.value.detail


def written(predictions: Batch, shape: TensorLayout = TensorLayout.ROWS) -> str:
    asked = DecodedRequest([], state=shape)
    reply = create_codec(RequestMetadata(Dialect.TENSORFLOW), graph(FLOATS)).encode_response(
        asked, predictions
    )
    assert (reply.status, reply.headers) == (200, ((b"content-type", b"application/json"),))
    return reply.body.decode()


def arrays(asked: DecodedRequest) -> dict[str, NDArray[Any]]:
    """The inputs by name, whichever way they are to be computed."""
    batch = asked.instances
    if isinstance(batch, WholeTensors):
        return dict(batch.values)
    assert isinstance(batch, dict)
    return batch


# ---- rows


def test_rows_are_read_as_those_of_ai_platform() -> None:
    asked = read(graph(FLOATS), {"instances": [[1, 2], [3, 4]]})

    assert arrays(asked)["x"].tolist() == [[1, 2], [3, 4]]
    assert (asked.parameters, asked.state) == ({}, TensorLayout.ROWS)


def test_rows_of_several_inputs_are_objects() -> None:
    asked = read(
        graph(FLOATS, TEXT), {"instances": [{"x": [1, 2], "s": "a"}, {"x": [3, 4], "s": {"b64": "/w=="}}]}
    )

    assert arrays(asked)["s"].tolist() == [b"a", b"\xff"]


@pytest.mark.parametrize("padding", ["", PADDING])
def test_the_default_signature_has_no_name(padding: str) -> None:
    """Who names it shares a call with those who do not; what else is there means nothing."""
    model = graph(FLOATS, other=ModelSignature((FLOATS,), ()))
    bodies = [
        {"instances": [[1, 2]], "signature_name": name, "more": padding}
        for name in ("serving_default", "", "other")
    ]

    assert [read(model, body).parameters for body in bodies] == [{}, {}, {"signature_name": "other"}]


def test_words_for_what_is_no_number() -> None:
    asked = read(graph(FLOATS), b'{"instances": [[NaN, 1], [Infinity, -Infinity]]}')

    assert arrays(asked)["x"].dtype == np.float32
    np.testing.assert_array_equal(arrays(asked)["x"], [[math.nan, 1], [math.inf, -math.inf]])


# ---- columns


@pytest.mark.parametrize("padding", ["", PADDING])
@pytest.mark.parametrize("inputs", [[[1, 2], [3, 4]], {"x": [[1, 2], [3, 4]]}])
def test_rows_in_columns_can_share_a_call(inputs: Any, padding: str) -> None:
    """They are columns like those of rows, since the model computes each row by itself."""
    asked = read(graph(FLOATS), {"inputs": inputs, "signature_name": "", "more": padding})

    assert isinstance(asked.instances, dict)
    assert asked.instances["x"].tolist() == [[1, 2], [3, 4]]
    assert asked.state is TensorLayout.COLUMNS


@pytest.mark.parametrize(
    ("model", "inputs", "wanted"),
    [
        pytest.param(graph(TensorSpec("x", "FP32", ())), 1.0, {"x": 1.0}, id="a scalar"),
        pytest.param(graph(TensorSpec("s", "BYTES", ())), "a", {"s": b"a"}, id="a text"),
        pytest.param(graph(TensorSpec("s", "BYTES", ())), {"b64": "/w=="}, {"s": b"\xff"}, id="bytes"),
        pytest.param(
            graph(TensorSpec("b64", "BYTES", (-1,))),
            {"b64": ["a"]},
            {"b64": [b"a"]},
            id="an input called b64",
        ),
        pytest.param(
            graph(FLOATS, INTEGERS), {"x": [[1, 2]], "n": [1, 2]}, {"x": [[1, 2]], "n": [1, 2]}, id="uneven"
        ),
        pytest.param(
            graph(FLOATS, outputs=(TensorSpec("y", "FP32", ()),)),
            [[1, 2]],
            {"x": [[1, 2]]},
            id="no rows come out",
        ),
        pytest.param(
            graph(TensorSpec("x", "FP32", (2, 2))),
            [[1, 2], [3, 4]],
            {"x": [[1, 2], [3, 4]]},
            id="a fixed batch",
        ),
        pytest.param(graph(TensorSpec("x", "BOOL", None)), [[[True]]], {"x": [[[True]]]}, id="any shape"),
        pytest.param(graph(INTEGERS), [], {"n": []}, id="nothing"),
        pytest.param(graph(FLOATS), {"x": [[1, 2]], "more": 1}, {"x": [[1, 2]]}, id="more than is asked for"),
    ],
)
def test_columns_of_any_shape(model: ServedModel, inputs: Any, wanted: dict[str, Any]) -> None:
    asked = read(model, {"inputs": inputs})

    assert {name: tensor.tolist() for name, tensor in arrays(asked).items()} == wanted


def test_the_inputs_are_those_of_the_signature() -> None:
    """A name that JSON escapes, too."""
    model = graph(FLOATS, other=ModelSignature((TensorSpec('a"b', "INT64", (-1,)),), ()))

    for inputs in ([1, 2], {'a"b': [1, 2]}):
        for padding in ("", PADDING):
            asked = read(model, {"inputs": inputs, "signature_name": "other", "more": padding})
            assert arrays(asked)['a"b'].tolist() == [1, 2]
            assert asked.parameters == {"signature_name": "other"}


def test_columns_of_a_regular_list_take_no_python_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do rows: the decoder alone reads them."""
    monkeypatch.setattr("serving.node.codecs.tensorflow_rest.parse_extended_json", None)

    for body in ({"inputs": [[1.5, 2]]}, {"inputs": {"x": [[1.5, 2]]}}, {"instances": [[1.5, 2]]}):
        assert arrays(read(graph(FLOATS), body))["x"].tolist() == [[1.5, 2]]


VALUES_OF_ANY_KIND = st.recursive(
    st.floats(width=32) | st.integers(-(2**40), 2**40) | st.text("a", max_size=1) | st.booleans() | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["x", "b64"]), inner, max_size=2)
    ),
    max_leaves=8,
)
ANY_MODEL = st.sampled_from(
    [
        graph(FLOATS),
        graph(INTEGERS),
        graph(TensorSpec("x", "FP32", None)),
        graph(FLOATS, TEXT),
        models.booster(2),
        models.mixed(),
        models.texts(),
        models.routine(),
    ]
)


@given(
    ANY_MODEL,
    st.dictionaries(
        st.sampled_from(["instances", "inputs", "signature_name", "examples", "context"]), VALUES_OF_ANY_KIND
    ),
    st.sampled_from(["", PADDING]),
)
def test_anything_is_read_or_refused(model: ServedModel, fields: dict[str, Any], padding: str) -> None:
    body = (json.dumps(fields) + padding).encode()

    for verb in ("predict", "classify", "regress"):
        try:
            read(model, body, verb)
        except ServingError as error:
            assert error.message


@given(VALUES_OF_ANY_KIND, st.booleans(), ANY_MODEL)
def test_the_dense_way_reads_what_the_plain_one_does(value: Any, named: bool, model: ServedModel) -> None:
    """Behind an entry that only the plain one takes, inputs come to the same."""
    inputs = {"x": value} if named else value
    plain: dict[str, Any] = {"signature_name": "", "deep": [[]], "inputs": inputs}
    if model.runtime.framework.runs_user_code:
        return

    def outcome(body: Any) -> str:
        try:
            asked = read(model, body)
        except InvalidInputs as error:
            return error.detail
        return repr(
            (
                asked.instances.values if isinstance(asked.instances, WholeTensors) else asked.instances,
                asked.state,
            )
        )

    assert outcome({"inputs": inputs}) == outcome(plain)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "JSON Parse error: The document is empty at offset: 0"),
        (b"[1]", "JSON Value: [1] Is not object"),
        ({}, "Missing 'inputs' or 'instances' key"),
        ({"instances": [[1, 2]], "inputs": 1}, "expecting only one of 'inputs' or 'instances' keys to exist"),
        (
            {"instances": [[1, 2]], "inputs": "a" + PADDING},
            "expecting only one of 'inputs' or 'instances' keys",
        ),
        (
            {"inputs": [[1, 2]], "instances": "a" + PADDING},
            "expecting only one of 'inputs' or 'instances' keys",
        ),
        ({"instances": 5}, "JSON Value: 5 Excepting 'instances' to be an list/array"),
        ({"instances": []}, "No values in 'instances' array"),
        ({"instances": [["a", 1]]}, "Instance 0: input x takes numbers (float32), got a string ('a')."),
        (
            {"instances": [[1, 2]], "signature_name": 5},
            "5 not formatted correctly. 'signature_name' key must be a",
        ),
        (
            {"inputs": [[1, 2]], "signature_name": "no"},
            "No signature found for signature key no. The model has:",
        ),
        ({"inputs": {"y": [[1, 2]]}}, "Missing named input: x in 'inputs' object."),
        ({"inputs": [[1, "a"]]}, "Input x takes numbers (float32), got a string ('a')."),
        ({"inputs": [[1, 2], [3]]}, "Input x is ragged: lists of the same level must have the same length."),
        ({"inputs": [[1, 2, 3]]}, "Input x takes FP32 of shape [-1, 2]; got FP32 of shape [1, 3]."),
        ({"inputs": 1}, "Input x takes FP32 of shape [-1, 2]; got FP32 of shape []."),
    ],
)
def test_what_is_wrong_is_said(body: Any, message: str) -> None:
    assert message in refusal(graph(FLOATS), body)


def test_what_is_wrong_with_texts_and_several_inputs_is_said() -> None:
    model = graph(FLOATS, TEXT)

    assert "expecting an object as multiple input tensors required" in refusal(model, {"inputs": [[1, 2]]})
    assert "Input s holds invalid base64" in refusal(model, {"inputs": {"x": [[1, 2]], "s": [{"b64": "?"}]}})
    assert 'Input s takes strings or {"b64": "..."}' in refusal(model, {"inputs": {"x": [[1, 2]], "s": [5]}})
    assert "takes COMPLEX64, for which there is no JSON" in refusal(
        graph(TensorSpec("z", "COMPLEX64", (-1,))), {"inputs": [1]}
    )


def test_errors_are_told_in_one_field() -> None:
    """Without the categories of AI Platform."""
    reply = create_codec(RequestMetadata(Dialect.TENSORFLOW), graph(FLOATS)).encode_error(
        InvalidInputs("No.")
    )

    assert (reply.status, json.loads(reply.body)) == (400, {"error": "No."})


# ---- answers


@pytest.mark.parametrize(
    ("predictions", "rows", "columns"),
    [
        ({"y": np.array([1.5, math.nan], np.float32)}, "[1.5,NaN]", "[1.5,NaN]"),
        ({"y_bytes": np.array([b"\xff"], object)}, '[{"b64":"/w=="}]', '[{"b64":"/w=="}]'),
        (
            {"y": np.array([[1, 2], [3, 4]]), "s": np.array([b"a", b"b"], object)},
            '[{"y":[1,2],"s":"a"},{"y":[3,4],"s":"b"}]',
            '{"y":[[1,2],[3,4]],"s":["a","b"]}',
        ),
        (np.array([[0.1, math.inf]], np.float32), "[[0.1,Infinity]]", "[[0.1,Infinity]]"),
        (["a", {"b": -math.inf}], '["a",{"b":-Infinity}]', '["a",{"b":-Infinity}]'),
    ],
)
def test_a_single_output_has_no_name(predictions: Batch, rows: str, columns: str) -> None:
    assert written(predictions) == f'{{"predictions":{rows}}}'
    assert written(predictions, TensorLayout.COLUMNS) == f'{{"outputs":{columns}}}'


def test_whole_tensors_are_answered_as_they_are() -> None:
    one = {"y": np.array(2.5, np.float32)}
    two = {**one, "z": np.array([[1], [2]])}

    assert written(WholeTensors(one), TensorLayout.COLUMNS) == '{"outputs":2.5}'
    assert written(WholeTensors(two), TensorLayout.COLUMNS) == '{"outputs":{"y":2.5,"z":[[1],[2]]}}'


# ---- other models


@pytest.mark.parametrize(
    ("model", "inputs", "wanted"),
    [
        (models.booster(2), [[1, 2], [3, 4]], [[1, 2], [3, 4]]),
        (models.booster(2), {"any": [[1, 2.5]]}, [[1, 2.5]]),
        (
            models.mixed(),
            {"city": ["a", "b"], "rooms": [1, 2]},
            [{"city": "a", "rooms": 1}, {"city": "b", "rooms": 2}],
        ),
        (models.texts(), ["a", "b"], ["a", "b"]),
        (models.texts(), {"any": ["a"]}, ["a"]),
        (models.routine(), [[1], {"a": None}], [[1], {"a": None}]),
        (models.routine(), {"a": [1, 2], "b": [[3], []]}, [{"a": 1, "b": [3]}, {"a": 2, "b": []}]),
    ],
)
def test_columns_become_rows_where_models_take_rows(
    model: ServedModel, inputs: Any, wanted: list[Any]
) -> None:
    asked = read(model, {"inputs": inputs})
    instances = asked.instances

    assert (instances.tolist() if isinstance(instances, np.ndarray) else instances) == wanted
    assert asked.state is TensorLayout.COLUMNS


def test_missing_values_have_words_too() -> None:
    asked = read(models.booster(2), b'{"inputs": [[NaN, 1], [null, 2]]}')

    np.testing.assert_array_equal(asked.instances, [[math.nan, 1], [math.nan, 2]])


def test_only_custom_routines_get_the_other_fields() -> None:
    body = {"instances": [[1, 2]], "signature_name": "serving_default", "more": 1}

    assert read(models.booster(2), body).parameters == {}
    assert read(models.routine(), body).parameters == {"more": 1}


@pytest.mark.parametrize(
    ("model", "inputs", "message"),
    [
        (models.booster(2), 5, "JSON Value: 5 Excepting 'inputs' to be an list/array"),
        (models.booster(2), [], "No values in 'inputs' array"),
        (models.booster(2), {}, "No values in 'inputs' object"),
        (models.booster(2), [[1, 2, 3]], "Instance 0 has 3 values; the model expects 2"),
        (models.mixed(), {"city": ["a"], "rooms": [1, 2]}, "city has 1, rooms has 2"),
        (models.mixed(), {"city": "a", "rooms": [1]}, "Excepting 'city' to be an list/array"),
    ],
)
def test_columns_that_are_no_rows(model: ServedModel, inputs: Any, message: str) -> None:
    assert message in refusal(model, {"inputs": inputs})


@pytest.mark.parametrize("verb", ["classify", "regress"])
@pytest.mark.parametrize("model", [models.booster(), models.mixed(), models.routine()])
def test_only_saved_models_take_examples(model: ServedModel, verb: str) -> None:
    with pytest.raises(FailedPrecondition, match=f"Only TensorFlow models can {verb}"):
        create_codec(RequestMetadata(Dialect.TENSORFLOW, verb), model)


# ---- examples

CLASSIFIER = graph(
    FLOATS,
    classify=ModelSignature((EXAMPLES,), (LABELS, SCORES), CLASSIFY),
    regress=ModelSignature((EXAMPLES,), (VALUES,), REGRESS),
    odd=ModelSignature((FLOATS,), (LABELS,), CLASSIFY),
)


def features(asked: DecodedRequest) -> list[dict[str, list[Any]]]:
    """The features of each example."""
    parsed = [load_message_class("tensorflow.Example").FromString(one) for one in arrays(asked)["inputs"]]
    return [
        {
            name: list(getattr(feature, feature.WhichOneof("kind")).value)
            if feature.WhichOneof("kind")
            else []
            for name, feature in example.features.feature.items()
        }
        for example in parsed
    ]


def classify(examples: Any, verb: str = "classify", **more: Any) -> dict[str, Any]:
    return {"signature_name": verb, "examples": examples, **more}


def test_examples_have_features_of_three_kinds() -> None:
    """Integers and truth, decimals, text and bytes; one value or a list."""
    body = b"""{"signature_name": "classify", "examples": [
        {"i": 1, "b": [true, false], "f": [1.0, NaN], "s": ["a", {"b64": "/w=="}], "none": []}, {}
    ]}"""
    asked = read(CLASSIFIER, body, "classify")
    first, second = features(asked)

    assert asked.parameters == {"signature_name": "classify"}
    assert math.isnan(first.pop("f")[1])
    assert first == {"i": [1], "b": [1, 0], "s": [b"a", b"\xff"], "none": []}
    assert second == {}


def test_a_context_is_not_put_into_any_number_of_examples() -> None:
    """A few kilobytes would ask for gigabytes."""
    long = "x" * (1 << 14)

    assert read(CLASSIFIER, classify([{}] * 1000, context={"a": long}), "classify").state == 1000
    with pytest.raises(InvalidInputs, match="each of 2000 examples: it can add 16 MiB"):
        read(CLASSIFIER, classify([{}] * 2000, context={"a": long}), "classify")


def test_the_context_is_in_every_example() -> None:
    """What an example has of itself goes before it."""
    asked = read(CLASSIFIER, classify([{"a": 1}, {"c": 3}], context={"c": 2, "d": "x"}), "classify")

    assert features(asked) == [{"a": [1], "c": [2], "d": [b"x"]}, {"c": [3], "d": [b"x"]}]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            {"signature_name": "classify"},
            "When method is classify, key 'examples' is expected and was not found",
        ),
        (classify(5), "JSON Value: 5 Expecting 'examples' value to be an list/array"),
        (classify([]), "'examples' value is an empty array"),
        (
            classify([{}, 5]),
            "element: 1 of 'examples' list. Error: Example must be JSON object but got JSON Number",
        ),
        (
            classify([{}], context=[1]),
            "process 'context'. Error: Example must be JSON object but got JSON Array",
        ),
        (classify([{"a": None}]), "Feature: a has element with unexpected JSON type: Null"),
        (classify([{"a": [[1]]}]), "Feature: a has element with unexpected JSON type: Array"),
        (classify([{"a": {"b": 1}}]), "Feature: a has element with unexpected JSON type: Object"),
        (classify([{"a": [1, 2.5]}]), "Unexpected element type in feature: a expecting type: int64"),
        (classify([{"a": ["x", 1]}]), "Unexpected element type in feature: a expecting type: bytes"),
        (classify([{"a": 2**63}]), "Feature: a has uint64 element. Only int64 is supported."),
        (classify([{"a": {"b64": "?"}}]), "Feature: a: unable to base64 decode"),
        (classify([{}], "none"), "No signature found for signature key none."),
        (classify([{}], ""), "Signature serving_default cannot classify: it would have to take serialised"),
        (classify([{}], "odd"), "its inputs are x (FP32)"),
        (
            classify([{}], "regress"),
            "Signature regress cannot classify: its outputs would have to be classes",
        ),
    ],
)
def test_examples_that_are_none(body: Any, message: str) -> None:
    assert message in refusal(CLASSIFIER, body, "classify")


def results(verb: str, **outputs: Any) -> str:
    columns = {
        name: np.asarray(value, object if name == "classes" else np.float32)
        for name, value in outputs.items()
    }
    asked = DecodedRequest([], state=len(next(iter(columns.values()))))
    return (
        create_codec(RequestMetadata(Dialect.TENSORFLOW, verb), CLASSIFIER)
        .encode_response(asked, columns)
        .body.decode()
    )


def test_classes_have_labels_and_scores() -> None:
    """One of both may be missing."""
    labels, scores = [[b"a", b"b"], [b"c", b"d"]], [[0.25, 0.75], [math.nan, 1]]

    assert results("classify", classes=labels, scores=scores) == (
        '{"results":[[["a",0.25],["b",0.75]],[["c",NaN],["d",1.0]]]}'
    )
    assert results("classify", scores=[[0.5]], other=[1]) == '{"results":[[["",0.5]]]}'
    assert results("classify", classes=[[b"a"]]) == '{"results":[[["a",0.0]]]}'
    assert results("classify", scores=[[], []]) == '{"results":[[],[]]}'


@pytest.mark.parametrize("values", [[3.5, math.inf], [[3.5], [math.inf]]])
def test_regressions_are_numbers(values: Any) -> None:
    assert results("regress", outputs=values) == '{"results":[3.5,Infinity]}'


@pytest.mark.parametrize(
    ("verb", "outputs", "message"),
    [
        ("classify", {"y": [1]}, r"must be \[1, number of classes\]; they are: y \[1\]"),
        ("classify", {"scores": [1]}, r"must be \[1, number of classes\]; they are: scores \[1\]"),
        ("classify", {"scores": [[1]], "classes": [[b"a", b"b"]]}, r"scores \[1, 1\], classes \[1, 2\]"),
        ("classify", {"classes": [[b"\xff"]]}, "is not UTF-8"),
        ("regress", {"outputs": [[1, 2]]}, r"must be \[1\] or \[1, 1\]; they are: outputs \[1, 2\]"),
    ],
)
def test_answers_that_are_none(verb: str, outputs: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOutputs, match=message):
        results(verb, **outputs)
