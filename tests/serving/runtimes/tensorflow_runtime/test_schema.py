"""Signatures, and examples of requests, as clients are told them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.model_schema import CLASSIFY, PREDICT, REGRESS, pack_schema
from serving.runtimes.json_codec import InstancesDecoder, encode_predictions
from serving.runtimes.schema_inference import infer_model_schema


def example_of(load: Any, model: str) -> Any:
    """The example of a model, with its answer; a client gets the same."""
    runtime = load(model)
    schema = infer_model_schema(runtime, Path())
    request = {"instances": [schema.example] * runtime._rows_per_request}
    batch, _ = InstancesDecoder().decode(json.dumps(request).encode(), runtime.input_format)
    assert json.loads(encode_predictions(runtime.predict(batch)))["predictions"][0] == schema.answer
    return schema.example


def test_signatures_are_told_as_they_are_saved(load: Any) -> None:
    schema = infer_model_schema(load("mixed"), Path())

    [signature] = schema.signatures.values()
    inputs = [(one.name, one.datatype, one.shape) for one in signature.inputs]
    assert (schema.platform, schema.default, schema.strict) == (
        "tensorflow_savedmodel",
        "serving_default",
        True,
    )
    assert inputs == [
        ("counts/last-7", "INT64", (-1, 3)),
        ("flag", "BOOL", (-1,)),
        ("half", "BF16", (-1,)),
        ("image", "BYTES", (-1,)),
    ]
    assert {one.name: one.datatype for one in signature.outputs}["mean"] == "FP32"
    assert all(":" in one.tensor for one in (*signature.inputs, *signature.outputs))
    assert signature.method == "tensorflow/serving/predict"


def test_methods_and_the_signature_that_answers_unnamed(load: Any) -> None:
    default = infer_model_schema(load("default_v1"), Path())
    none = infer_model_schema(load("two_signatures"), Path())

    assert {signature.method for signature in default.signatures.values()} <= {PREDICT, CLASSIFY, REGRESS}
    assert (none.default, none.example) == ("", None)
    assert len(none.signatures) == 2


@pytest.mark.parametrize("model", ["dense", "mixed", "stateful", "default_v1", "fixed_batch", "unknown_size"])
def test_the_example_predicts(load: Any, model: str) -> None:
    assert example_of(load, model) is not None


@pytest.mark.parametrize("model", ["examples", "examples_v1"])
def test_a_graph_that_parses_examples_says_what_they_must_have(load: Any, model: str, tf: Any) -> None:
    written = base64.b64decode(example_of(load, model)["b64"])

    feature = tf.train.Example.FromString(written).features.feature
    assert {"size", "rooms"} <= feature.keys() <= {"size", "rooms", "city"}
    assert list(feature["size"].float_list.value) == [0.0, 0.0]
    assert list(feature["rooms"].int64_list.value) == [0]


def test_an_example_with_many_numbers_is_all_zeros(load: Any) -> None:
    """Kept, it takes next to nothing."""
    schema = infer_model_schema(load("keras"), Path())

    assert schema.example == np.zeros((16, 32)).tolist()
    assert len(pack_schema(schema)) < 2000
