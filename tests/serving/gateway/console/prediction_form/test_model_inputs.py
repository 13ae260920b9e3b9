from __future__ import annotations

import json
from typing import Any

import pytest

from serving.frameworks import load_frameworks
from serving.gateway.console.prediction_form.model_inputs import (
    PLACEHOLDER,
    ModelInputs,
    describe_model_inputs,
)
from serving.model_schema import (
    DEFAULT_SIGNATURE,
    ModelSchema,
    ModelSignature,
    TensorSpec,
    schema_to_json,
)

TABULAR = load_frameworks()["SCIKIT_LEARN"].platform
GRAPH = load_frameworks()["TENSORFLOW"].platform
CUSTOM = load_frameworks()["CUSTOM"].platform
LABEL = TensorSpec("predictions", "BYTES", (-1,), classes=("no", "yes"))


def describe(*inputs: TensorSpec, platform: str = TABULAR, **more: Any) -> ModelInputs:
    signature = ModelSignature(inputs, (LABEL,))
    return describe_model_inputs(
        schema_to_json(ModelSchema(platform, {DEFAULT_SIGNATURE: signature}, **more))
    )


def test_names_types_and_shapes_are_said_in_words() -> None:
    found = describe(
        TensorSpec("age", "FP32", (-1,)),
        TensorSpec("pixels", "UINT8", (-1, 28, -1)),
        TensorSpec("old", "BOOL", (-1,)),
        TensorSpec("any", "BYTES", None),
    )
    (signature,) = found.signatures
    assert [(one.name, one.kind, one.shape) for one in signature.inputs] == [
        ("age", "number (FP32)", "one value"),
        ("pixels", "whole number (UINT8)", "lists in lists, 28 x any"),
        ("old", "true or false", "one value"),
        ("any", "text or any JSON", "any"),
    ]
    listed = [TensorSpec("four", "FP64", (-1, 4)), TensorSpec("more", "FP64", (-1, -1))]
    assert [one.shape for one in describe(*listed).signatures[0].inputs] == [
        "a list of 4",
        "a list of any length",
    ]
    (output,) = signature.outputs
    assert (output.name, output.kind, output.classes) == ("predictions", "text (BYTES)", '"no", "yes"')


AGE, CITY = TensorSpec("age", "FP64", (-1,)), TensorSpec("city", "BYTES", (-1,))


@pytest.mark.parametrize(
    ("inputs", "platform", "example", "bodies"),
    [
        ([TensorSpec("instances", "FP64", (-1, 2))], TABULAR, [1.0, 2.0], ['{"instances": [[1.0, 2.0]]}']),
        (
            [AGE, CITY],
            TABULAR,
            {"age": 41.0, "city": "Oslo"},
            ['{"instances": [{"age": 41.0, "city": "Oslo"}]}', '{"instances": [[41.0, "Oslo"]]}'],
        ),
        (
            [TensorSpec("column-0", "FP64", (-1,)), TensorSpec("column-1", "BYTES", (-1,))],
            TABULAR,
            [1.0, "a"],
            ['{"instances": [[1.0, "a"]]}'],
        ),
        ([AGE, CITY], GRAPH, {"age": 1, "city": "é"}, ['{"instances": [{"age": 1, "city": "é"}]}']),
        ([AGE], GRAPH, 1.0, ['{"instances": [1.0]}', '{"instances": [{"age": 1.0}]}']),
        ([TensorSpec("x", "FP32", (2, 1))], GRAPH, [1.0], ['{"instances": [[1.0], [1.0]]}', None]),
        # Nothing is known of an instance.
        ([AGE], GRAPH, None, ['{"instances": […]}', '{"instances": [{"age": …}]}']),
        (
            [TensorSpec(f"f{place}", "FP64", (-1,)) for place in range(30)],
            GRAPH,
            None,
            ['{"instances": [{"f0": …, "f1": …, "f2": …, "f3": …, "f4": …, "f5": …, …}]}'],
        ),
    ],
)
def test_the_forms_of_a_request_are_shown_with_the_example(
    inputs: list[TensorSpec], platform: str, example: Any, bodies: list[str | None]
) -> None:
    found = describe(*inputs, platform=platform, example=example, answer="yes")
    assert [form.body for form in found.forms if form.body in bodies] == [one for one in bodies if one]
    assert len(found.forms) == len(bodies)
    assert found.request == bodies[0]
    assert not found.is_free


def test_an_example_that_a_page_would_cut_is_left_out() -> None:
    pixels = TensorSpec("instances", "FP64", (-1, 9000))
    found = describe(pixels, example=[0.0] * 9000, answer=1)
    assert (found.request, found.answer) == ('{"instances": […]}', "")
    assert "too long for a page" in found.notes[-1]


def test_user_code_may_take_anything() -> None:
    free = TensorSpec("instances", "BYTES", None)
    found = describe(free, platform=CUSTOM, strict=False)
    assert (found.is_free, found.request, found.answer) == (True, f'{{"instances": [{PLACEHOLDER}]}}', "")
    with pytest.raises(ValueError, match="Expecting value"):
        json.loads(found.request)
    known = describe(free, platform=CUSTOM, strict=False, example={"a": 1}, answer=2)
    assert (known.request, known.answer) == ('{"instances": [{"a": 1}]}', '{"predictions": [2]}')


def test_other_signatures_methods_and_bytes_are_explained() -> None:
    image = ModelSignature((TensorSpec("image", "BYTES", (-1,)),), (LABEL,))
    schema = ModelSchema(
        GRAPH, {"aaa": image, DEFAULT_SIGNATURE: ModelSignature((AGE,), (LABEL,))}, example=1.0
    )
    found = describe_model_inputs(schema_to_json(schema))
    assert [(one.name, one.is_default) for one in found.signatures] == [
        (DEFAULT_SIGNATURE, True),
        ("aaa", False),
    ]
    assert '{"instances": [{"image": …}], "signature_name": "aaa"}' in [form.body for form in found.forms]
    assert found.notes[0] == "A request has any number of instances."
    assert "b64" in found.notes[1]
    assert "signature_name" in found.notes[2]
    scored = describe(AGE, method="predict", methods=(TensorSpec("predict_proba", "FP64", (-1, 2)),))
    assert "another method than predict: predict_proba." in scored.notes[1]
    fixed = describe(TensorSpec("x", "FP32", (2, 1)), platform=GRAPH)
    assert fixed.notes == ("A request has exactly 2 instances.",)
