"""The golden rule: every answer equals the signature call of `tf.saved_model.load`, to the bit.

TensorFlow is imported by the fixtures only, so that collecting the tests does not import it.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from serving.errors import InvalidInputs, InvalidOutputs, ModelFailed
from serving.runtimes import ColumnSpec
from serving.runtimes.instance_batch import WholeTensors
from tests.serving.runtimes.tensorflow_runtime.saved_models import Arrays, assert_same, normal, strings

# ---- answers


@pytest.mark.parametrize("count", [1, 2, 3, 33])
@pytest.mark.parametrize(
    ("model", "alias", "shape"),
    [
        ("dense", "x", (30,)),
        ("keras", "tokens", (16, 32)),
        ("captured", "x", (7,)),
        ("spare", "x", (7,)),
        ("recurrent", "steps", (6, 5)),
        ("convolution", None, (12, 12, 3)),
        ("any_shape", "x", (2, 3)),
    ],
)
def test_v2_answers_like_the_signature_call(
    load: Any, reference: Any, model: str, alias: str | None, shape: tuple[int, ...], count: int
) -> None:
    runtime = load(model)
    instances = {alias or runtime.input_format({}).inputs[0].name: normal(count, *shape)}

    assert_same(runtime.predict(instances), reference(model, instances))


def mixed_instances(count: int) -> Arrays:
    from tensorflow import bfloat16

    return {
        "image": strings(*(b"a\0b\xff" * row for row in range(count))),
        "counts/last-7": np.arange(count * 3).reshape(count, 3),
        "flag": np.arange(count) % 2 == 0,
        "half": np.linspace(0, 1, count).astype(bfloat16.as_numpy_dtype),
    }


@pytest.mark.parametrize("count", [1, 5])
def test_mixed_types_strings_and_aliases_that_are_no_identifiers(
    load: Any, reference: Any, count: int
) -> None:
    instances = mixed_instances(count)

    answer = load("mixed").predict(instances)

    assert_same(answer, reference("mixed", instances))
    assert answer["image_bytes"].dtype == object
    assert answer["image_bytes"].tolist() == instances["image"].tolist()


def test_tables_are_restored_too(load: Any, reference: Any) -> None:
    """They are no variables, so the model's own function restores them."""
    instances = {"word": strings(b"b", b"a", b"z")}

    answer = load("stateful").predict(instances)

    assert_same(answer, reference("stateful", instances))
    assert answer["number"].tolist() == [40, 20, -20]


@pytest.mark.parametrize("count", [1, 3, 64])
def test_v1_answers_like_the_signature_call(load: Any, reference: Any, count: int) -> None:
    instances = {"x": normal(count, 16, 32), "word": strings(*[b"dog"] * (count - 1), b"cow")}

    assert_same(load("default_v1").predict(instances), reference("default_v1", instances))


def test_v1_signatures_by_name(tf: Any, load: Any, reference: Any) -> None:
    example = tf.train.Example()
    example.features.feature["x"].float_list.value.extend([1.5, -2])
    serialised = {"inputs": strings(example.SerializeToString())}
    features = {"x": normal(3, 2), "key": np.array([5, 6, 7], np.int32)}
    runtime = load("two_signatures")

    classified = runtime.predict(serialised, signature_name="classify")
    predicted = runtime.predict(features, signature_name="predict", ignored={"by": "contract"})

    assert_same(classified, reference("two_signatures", serialised, "classify"))
    assert_same(predicted, reference("two_signatures", features, "predict"))
    assert predicted["key"].tolist() == [5, 6, 7]


def test_the_text_form_of_a_model(tf: Any, models: Any, load: Any, reference: Any, tmp_path: Path) -> None:
    from google.protobuf import text_format
    from tensorflow.core.protobuf import saved_model_pb2

    folder = shutil.copytree(models("dense"), tmp_path / "text")
    binary = folder / "saved_model.pb"
    proto = saved_model_pb2.SavedModel.FromString(binary.read_bytes())
    (folder / "saved_model.pbtxt").write_text(text_format.MessageToString(proto))
    binary.unlink()

    answer = load(folder).predict({"x": normal(2, 30)})

    assert_same(answer, reference("dense", {"x": normal(2, 30)}))


def test_assets_are_those_in_the_folder(models: Any, load: Any, tmp_path: Path) -> None:
    folder = shutil.copytree(models("vocabulary"), tmp_path / "moved")
    (asset,) = (folder / "assets").iterdir()
    asset.write_text("dog\ncow\n")

    assert load(folder).predict({"word": strings(b"cow", b"cat")})["id"].tolist() == [1, -1]
    assert load("vocabulary").predict({"word": strings(b"cow", b"cat")})["id"].tolist() == [-1, 0]


def test_inputs_are_not_changed_nor_need_to_be_contiguous(load: Any, reference: Any) -> None:
    wide = normal(3, 60)
    instances = {"x": wide[:, ::2]}

    assert_same(load("dense").predict(instances), reference("dense", {"x": wide[:, ::2].copy()}))
    np.testing.assert_array_equal(wide, normal(3, 60))


def test_an_output_without_dimension_is_one_element(load: Any) -> None:
    answer = load("total").predict({"x": np.array([[1, 2]], np.float32)})

    assert_same(answer, {"total": np.array([3], np.float32), "text": strings(b"end\0")})


def test_every_output_needs_a_row_per_instance(load: Any) -> None:
    with pytest.raises(
        InvalidInputs, match=r"2 instance\(s\).*text \[\], total \[\].*Open Inference Protocol"
    ):
        load("total").predict({"x": normal(2, 2)})


def test_an_input_without_dimension_holds_for_the_whole_request(load: Any) -> None:
    runtime = load("scalar_input")
    instances = {
        "x": np.ones((2, 2), np.float32),
        "scale": np.full(2, 3, np.float32),
        "unit": strings(b"m\0", b"m\0"),
    }

    assert runtime.input_format({}).inputs[0] == ColumnSpec("scale", np.dtype(np.float32), ())
    assert runtime.predict(instances)["y"].tolist() == [[3, 3], [3, 3]]
    assert runtime.predict(instances)["unit"].tolist() == [b"m\0", b"m\0"]
    with pytest.raises(InvalidInputs, match="scale is one value for the whole request"):
        runtime.predict(instances | {"scale": np.array([3, 4], np.float32)})


def test_a_fixed_batch_takes_that_many(load: Any) -> None:
    runtime = load("fixed_batch")

    assert runtime.input_format({}).inputs == (ColumnSpec("x", np.dtype(np.float32), (4,)),)
    assert runtime.predict({"x": np.ones((2, 4), np.float32)})["y"].tolist() == [[2] * 4] * 2
    with pytest.raises(InvalidInputs, match=r"exactly 2 instance\(s\).*got 3"):
        runtime.predict({"x": np.ones((3, 4), np.float32)})


# ---- whole tensors


def scalar(value: object, dtype: Any) -> NDArray[Any]:
    return np.array(value, dtype)


@pytest.mark.parametrize(
    ("model", "tensors"),
    [
        pytest.param("total", {"x": normal(3, 2)}, id="outputs without a dimension"),
        pytest.param(
            "scalar_input",
            {"x": normal(3, 2), "scale": scalar(2, np.float32), "unit": scalar(b"m\0", object)},
            id="inputs without a dimension",
        ),
        pytest.param("fixed_batch", {"x": normal(2, 4)}, id="a fixed batch"),
        pytest.param("any_shape", {"x": scalar(1.5, np.float32)}, id="a scalar where any shape will do"),
        pytest.param(
            "unknown_size",
            {"x": np.ones((2, 4, 3), np.int32), "b": scalar([True], bool), "s": strings(b"a", b"b", b"c")},
            id="as many rows as each likes",
        ),
        pytest.param("dense", {"x": normal(0, 30)}, id="no rows at all"),
        pytest.param("no_inputs", {}, id="no inputs"),
    ],
)
def test_whole_tensors_answer_like_the_signature_call(
    load: Any, reference: Any, model: str, tensors: Arrays
) -> None:
    answer = load(model).predict(WholeTensors(tensors))

    assert_same(answer.values, reference(model, tensors))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"x": normal(3, 4)}, r"Input x takes a float32 tensor of shape \[2, 4\]; got float32 of .*\[3, 4\]"),
        ({"x": normal(4)}, r"shape \[2, 4\]; got float32 of shape \[4\]"),
        ({"x": np.ones((2, 4))}, r"takes a float32 tensor .*; got float64 of shape \[2, 4\]"),
        ({"y": normal(2, 4)}, r"Expected the inputs \['x'\], got \['y'\]"),
    ],
)
def test_tensors_that_do_not_fit(load: Any, tensors: Arrays, message: str) -> None:
    with pytest.raises(InvalidInputs, match=message):
        load("fixed_batch").predict(WholeTensors(tensors))


def test_sparse_inputs_are_no_tensors_either(load: Any) -> None:
    with pytest.raises(InvalidInputs, match="takes sparse or ragged tensors as x"):
        load("sparse_input").predict(WholeTensors({"x": normal(2, 3)}))


def test_several_signatures_about_the_same_inputs(tf: Any, load: Any) -> None:
    """Outputs are named by their signature; a single input goes by the name that each has for it."""
    runtime = load("two_signatures")
    values = tf.train.FloatList(value=[1, 2])
    features = tf.train.Features(feature={"x": tf.train.Feature(float_list=values)})
    example = strings(tf.train.Example(features=features).SerializeToString())
    alone = runtime.predict({"inputs": example}, signature_name="classify")["scores"]

    columns = runtime.predict({"examples": example}, signature_names=("classify", "classify"))
    whole = runtime.predict(WholeTensors({"inputs": example}), signature_names=("classify",))

    assert_same(columns, {"classify/scores": alone})
    assert_same(whole.values, {"classify/scores": alone})
    with pytest.raises(InvalidInputs, match=r"Expected the inputs \['key', 'x'\], got \['examples'\]"):
        runtime.predict({"examples": example}, signature_names=("classify", "predict"))


# ---- signatures and forms


def test_form_names_every_input(load: Any) -> None:
    columns = {column.name: column for column in load("mixed").input_format({"other": 1}).inputs}

    assert list(columns) == ["counts/last-7", "flag", "half", "image"]
    assert columns["image"] == ColumnSpec("image", np.dtype(object), ())
    assert columns["counts/last-7"] == ColumnSpec("counts/last-7", np.dtype(np.int64), (3,))
    assert columns["half"].dtype.name == "bfloat16"


def test_form_with_unknown_shapes(load: Any) -> None:
    assert load("any_shape").input_format({}).inputs[0].shape is None
    assert load("unknown_size").input_format({}).inputs[2].shape == (None, 3)


def test_form_is_built_once(load: Any) -> None:
    assert load("dense").input_format({}) is load("dense").input_format({"signature_name": "serving_default"})


@pytest.mark.parametrize(
    ("parameters", "inputs"),
    [
        ({}, ["word", "x"]),
        ({"signature_name": None}, ["word", "x"]),
        ({"signature_name": "lookup"}, ["word"]),
    ],
)
def test_signature_choice(load: Any, parameters: dict[str, Any], inputs: list[str]) -> None:
    assert [column.name for column in load("default_v1").input_format(parameters).inputs] == inputs


def test_an_unknown_signature_is_answered_with_the_known_ones(load: Any) -> None:
    with pytest.raises(
        InvalidInputs, match=r"No signature found for signature key nope\. The model has: lookup, serving_def"
    ):
        load("default_v1").input_format({"signature_name": "nope"})


def test_a_model_without_default_asks_for_a_signature(load: Any) -> None:
    with pytest.raises(InvalidInputs, match=r'"signature_name".*classify, predict'):
        load("two_signatures").input_format({})


def test_a_signature_name_is_a_string(load: Any) -> None:
    with pytest.raises(InvalidInputs, match="must be a string; it is 3"):
        load("dense").input_format({"signature_name": 3})


def test_the_init_op_is_no_signature(load: Any) -> None:
    with pytest.raises(InvalidInputs, match="No signature found"):
        load("dense").input_format({"signature_name": "__saved_model_init_op"})


@pytest.mark.parametrize(
    ("model", "mergeable"),
    [
        ("dense", True),
        ("mixed", True),
        ("keras", True),
        ("default_v1", True),
        ("fixed_batch", False),
        ("total", False),
        ("scalar_input", False),
        ("any_shape", False),
    ],
)
def test_rows_are_independent_where_every_first_dimension_is_open(
    load: Any, model: str, mergeable: bool
) -> None:
    runtime = load(model)

    assert runtime.mergeable is mergeable
    assert (runtime.exact, runtime.framework.name, runtime.warnings) == (False, "TENSORFLOW", ())


# ---- wrong instances


@pytest.mark.parametrize(
    ("instances", "message"),
    [
        ({}, r"Expected the inputs \['x'\], got \[\]"),
        ({"y": normal(1, 30)}, r"Expected the inputs \['x'\], got \['y'\]"),
        (
            {"x": normal(1, 29)},
            r"Input x takes float32 instances of shape \[30\]; got float32 of shape \[29\]",
        ),
        ({"x": normal(1, 30, 1)}, r"got float32 of shape \[30, 1\]"),
        ({"x": normal(1, 30).astype(np.float64)}, "got float64 of shape"),
        ({"x": np.float32(1)}, r"of shape \[30\]; got"),
        ({"x": normal(0, 30)}, "There are no instances"),
    ],
)
def test_instances_that_do_not_fit(load: Any, instances: Arrays, message: str) -> None:
    with pytest.raises(InvalidInputs, match=message):
        load("dense").predict(instances)


def test_columns_of_different_length(load: Any) -> None:
    with pytest.raises(InvalidInputs, match=r"same number of rows: .*flag has 1"):
        load("mixed").predict(mixed_instances(2) | {"flag": np.array([True])})


def test_strings_must_be_bytes(load: Any) -> None:
    with pytest.raises(InvalidInputs, match="Unsupported object type int"):
        load("default_v1").predict({"word": np.array([1], object)}, signature_name="lookup")


@pytest.mark.parametrize(
    ("value", "message"),
    [(10, r"indices\[0\] = 10 is not in \[0, 10\) \(E"), (-1, r"Invalid inputs: .*x must not be negative")],
)
def test_an_error_of_the_graph_about_its_input(load: Any, value: int, message: str) -> None:
    with pytest.raises(InvalidInputs, match=message) as caught:
        load("checks").predict({"x": np.array([value], np.int32)})

    assert "{{" not in caught.value.message
    assert "\n" not in caught.value.message


def test_an_error_of_the_graph_itself(load: Any) -> None:
    with pytest.raises(ModelFailed, match=r"Exception during running the graph: 5; No such file or dir"):
        load("checks").predict({"x": np.array([5], np.int32)})


def test_ragged_outputs_cannot_be_sent(load: Any) -> None:
    with pytest.raises(InvalidOutputs, match="sparse or ragged tensors as words"):
        load("ragged").predict({"text": strings(b"a b")})
    assert "ragged tensors as words" in load("ragged").warnings[0]


def test_sparse_inputs_cannot_be_given(load: Any) -> None:
    runtime = load("sparse_input")

    with pytest.raises(InvalidInputs, match="sparse or ragged tensors as x"):
        runtime.input_format({})
    with pytest.raises(InvalidInputs, match="sparse or ragged tensors as x"):
        runtime.predict({"x": normal(1, 3)})
    assert runtime.make_synthetic_rows(1) is None
    assert len(runtime.warnings) == 1


def test_a_signature_without_inputs_takes_no_instances(load: Any) -> None:
    with pytest.raises(InvalidInputs, match="has no inputs"):
        load("no_inputs").input_format({})


# ---- samples


def test_samples_fit_and_are_the_same_every_time(load: Any) -> None:
    runtime = load("unknown_size")
    some = runtime.make_synthetic_rows(4)

    assert {alias: (column.dtype, column.shape) for alias, column in some.items()} == {
        "b": (np.dtype(bool), (4,)),
        "s": (np.dtype(object), (4,)),
        "x": (np.dtype(np.int32), (4, 1, 3)),
    }
    assert set(some["x"].flat) <= {0, 1, 2}
    assert some["s"].tolist() == [b""] * 4
    assert_same(some, runtime.make_synthetic_rows(4))
    assert len(runtime.predict(some)["y"]) == 4


def test_a_smaller_sample_is_the_start_of_a_larger(load: Any) -> None:
    runtime = load("dense")

    np.testing.assert_array_equal(
        runtime.make_synthetic_rows(2)["x"], runtime.make_synthetic_rows(64)["x"][:2], strict=True
    )
    assert runtime.make_synthetic_rows(1)["x"].dtype == np.float32


@pytest.mark.parametrize(("model", "rows"), [("mixed", 3), ("fixed_batch", 2), ("scalar_input", 3)])
def test_samples_can_be_predicted(load: Any, model: str, rows: int) -> None:
    answer = load(model).predict(load(model).make_synthetic_rows(3))

    assert {len(column) for column in answer.values()} == {rows}


@pytest.mark.parametrize("model", ["any_shape", "two_signatures"])
def test_no_samples_without_a_rank_or_a_default(load: Any, model: str) -> None:
    assert load(model).make_synthetic_rows(1) is None
