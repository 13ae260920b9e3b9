"""The golden rule: every answer equals the signature call of `tf.saved_model.load`, to the bit.

TensorFlow is imported by the fixtures only, so that collecting the tests does not import it.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from serving.errors import InvalidInputs, InvalidOutputs, LoadFailed, ModelFailed
from serving.model_schema import CLASSIFY, PREDICT, REGRESS, pack_schema
from serving.runtimes import ColumnSpec, LoadSpec
from serving.runtimes.instance_batch import WholeTensors
from serving.runtimes.json_codec import InstancesDecoder, encode_predictions
from serving.runtimes.schema_inference import infer_model_schema
from serving.runtimes.tensorflow_runtime import warmup_records
from tests.serving.runtimes.conftest import QUIET

Arrays = dict[str, NDArray[Any]]


@pytest.fixture(scope="session")
def models(tf: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a model by the name of its builder below; each is built once."""
    root = tmp_path_factory.mktemp("models")

    def model(name: str) -> Path:
        folder = root / name
        if not folder.exists():
            globals()[f"build_{name}"](tf, folder)
        return folder

    return model


@pytest.fixture(scope="session")
def load(tf: Any, models: Callable[[str], Path]) -> Callable[[str | Path], Any]:
    """The runtime of a model, by its builder's name (loaded once) or its folder."""
    from serving.runtimes.tensorflow_runtime import runtime

    known: dict[str, Any] = {}

    def load(model: str | Path) -> Any:
        if isinstance(model, Path):
            return runtime.load_model(LoadSpec(model))
        return known.setdefault(model, known.get(model) or runtime.load_model(LoadSpec(models(model))))

    return load


@pytest.fixture(scope="session")
def reference(tf: Any, models: Callable[[str], Path]) -> Callable[..., Arrays]:
    """What the signature call answers."""
    loaded: dict[str, Any] = {}

    def call(model: str, instances: Mapping[str, Any], signature: str = "serving_default") -> Arrays:
        known = loaded.setdefault(model, loaded.get(model) or tf.saved_model.load(str(models(model))))
        tensors = {alias: tf.constant(value) for alias, value in instances.items()}
        return {alias: np.asarray(v) for alias, v in known.signatures[signature](**tensors).items()}

    return call


def assert_same(got: Arrays, wanted: Arrays) -> None:
    assert sorted(got) == sorted(wanted)
    for alias, column in got.items():
        np.testing.assert_array_equal(column, wanted[alias], strict=True)


def normal(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


def strings(*values: bytes) -> NDArray[Any]:
    return np.array(values, object)


# ---- models


def save(tf: Any, folder: Path, *specs: Any, body: Callable[..., Any], state: tuple[Any, ...] = ()) -> None:
    """A SavedModel of version 2 with the one signature serving_default."""
    module = tf.Module()
    module.state = list(state)
    module.serve = tf.function(body, input_signature=list(specs))
    tf.saved_model.save(module, str(folder), signatures={"serving_default": module.serve})


def build_dense(tf: Any, folder: Path) -> None:
    weights = tf.Variable(normal(30, 16))
    save(
        tf,
        folder,
        tf.TensorSpec([None, 30], tf.float32, "x"),
        body=lambda x: {"probabilities": tf.nn.softmax(tf.nn.relu(x @ weights))},
        state=(weights,),
    )


def build_mixed(tf: Any, folder: Path) -> None:
    """Several inputs and outputs of several types; an output that is an input, and one twice."""

    def body(image: Any, counts: Any, flag: Any, half: Any) -> dict[str, Any]:
        total = tf.reduce_sum(counts, axis=1)
        return {
            "image_bytes": image,
            "shouted": tf.strings.upper(image),
            "total": total,
            "same total": total,
            "even": tf.equal(counts % 2, 0),
            "mean": tf.reduce_mean(tf.cast(counts, tf.float32), axis=1),
            "double": tf.where(flag, half * 2, half),
            "key": counts,
        }

    save(
        tf,
        folder,
        tf.TensorSpec([None], tf.string, "image"),
        tf.TensorSpec([None, 3], tf.int64, "counts/last-7"),
        tf.TensorSpec([None], tf.bool, "flag"),
        tf.TensorSpec([None], tf.bfloat16, "half"),
        body=body,
    )


def build_keras(tf: Any, folder: Path) -> None:
    """An encoder: the graph optimiser rewrites it differently when it does not know the shapes."""
    from tensorflow import keras

    keras.utils.set_random_seed(3)
    layers = keras.layers
    x = tokens = keras.Input((16, 32), name="tokens")
    for _ in range(2):
        seen = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 8)(x, x))
        x = layers.LayerNormalization()(seen + layers.Dense(32)(layers.Dense(64, activation="gelu")(seen)))
    model = keras.Model(tokens, {"label": layers.Dense(3)(layers.Flatten()(x)), "tokens": x})
    for weight in model.weights:
        weight.assign(normal(*weight.shape) * 0.3)
    model.export(str(folder), verbose=False)


def build_captured(tf: Any, folder: Path) -> None:
    """Constants captured by the function: the graph optimiser would fold them if it saw them."""
    mean, deviation = tf.constant(normal(1, 7)), tf.constant(np.abs(normal(1, 7)) + 0.1)
    weights = tf.Variable(normal(7, 5))
    save(
        tf,
        folder,
        tf.TensorSpec([None, 7], tf.float32, "x"),
        body=lambda x: {"y": tf.nn.elu(((x - mean) / deviation) @ weights)},
        state=(weights, mean, deviation),
    )


def build_spare(tf: Any, folder: Path) -> None:
    """Variables that no request reads, before and between those that it reads."""
    spare, weights, more, bias = (tf.Variable(normal(*shape)) for shape in ((9, 9), (7, 5), (7, 5), (5,)))
    save(
        tf,
        folder,
        tf.TensorSpec([None, 7], tf.float32, "x"),
        body=lambda x: {"y": tf.nn.relu(x @ weights + bias)},
        state=(spare, weights, more, bias),
    )


def build_stateful(tf: Any, folder: Path) -> None:
    """A table that is restored, like the variable beside it."""
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    table.insert(tf.constant(["a", "b"]), tf.constant([1, 2], tf.int64))
    weights = tf.Variable([10, 20], dtype=tf.int64)
    save(
        tf,
        folder,
        tf.TensorSpec([None], tf.string, "word"),
        body=lambda word: {"number": table.lookup(word) * weights[1]},
        state=(table, weights),
    )


def build_recurrent(tf: Any, folder: Path) -> None:
    from tensorflow import keras

    keras.utils.set_random_seed(3)
    layers = keras.layers
    steps = keras.Input((6, 5), name="steps")
    x = layers.Bidirectional(layers.LSTM(4, return_sequences=True))(steps)
    keras.Model(steps, layers.Dense(2)(layers.GRU(3)(x))).export(str(folder), verbose=False)


def build_convolution(tf: Any, folder: Path) -> None:
    from tensorflow import keras

    keras.utils.set_random_seed(3)
    layers = keras.layers
    image = keras.Input((12, 12, 3))
    x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(8, 3)(image)))
    keras.Model(image, layers.Dense(4)(layers.GlobalAveragePooling2D()(x))).export(str(folder), verbose=False)


def save_v1(tf: Any, folder: Path, build: Callable[[Any], Mapping[str, Any]], tags: tuple[str, ...]) -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        signatures = {
            name: v1.saved_model.predict_signature_def(inputs, outputs)
            for name, (inputs, outputs) in build(v1).items()
        }
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
        builder = v1.saved_model.Builder(str(folder))
        builder.add_meta_graph_and_variables(
            session,
            list(tags),
            signatures,
            assets_collection=v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS),
            main_op=v1.tables_initializer(),
        )
        builder.save()


def build_two_signatures(tf: Any, folder: Path) -> None:
    """As an estimator exports: serialised examples, or features; a key that is passed through."""

    def build(v1: Any) -> Mapping[str, Any]:
        weights = v1.get_variable("weights", initializer=normal(2, 3), use_resource=False)
        examples = v1.placeholder(tf.string, [None], "examples")
        parsed = tf.io.parse_example(examples, {"x": tf.io.FixedLenFeature([2], tf.float32)})["x"]
        features = v1.placeholder(tf.float32, [None, 2], "features")
        key = v1.placeholder(tf.int32, [None], "key")
        return {
            "classify": ({"inputs": examples}, {"scores": tf.matmul(parsed, weights)}),
            "predict": ({"x": features, "key": key}, {"scores": tf.matmul(features, weights), "key": key}),
        }

    save_v1(tf, folder, build, ("serve",))


def vocabulary_table(tf: Any, folder: Path) -> Any:
    vocabulary = folder.with_name(f"{folder.name}.txt")
    vocabulary.write_text("cat\ndog\n")
    index = tf.lookup.TextFileIndex
    words = tf.lookup.TextFileInitializer(
        str(vocabulary), tf.string, index.WHOLE_LINE, tf.int64, index.LINE_NUMBER
    )
    return tf.lookup.StaticHashTable(words, -1)


def build_vocabulary(tf: Any, folder: Path) -> None:
    table = vocabulary_table(tf, folder)
    spec = tf.TensorSpec([None], tf.string, "word")
    save(tf, folder, spec, body=lambda word: {"id": table.lookup(word)}, state=(table,))


def build_default_v1(tf: Any, folder: Path) -> None:
    """An encoder and a vocabulary file, and a default signature among two."""

    def build(v1: Any) -> Mapping[str, Any]:
        x = v1.placeholder(tf.float32, [None, 16, 32], "x")
        word = v1.placeholder(tf.string, [None], "word")
        table = vocabulary_table(tf, folder)
        y = x
        for block in range(2):

            def dense(x: Any, name: str, size: int, block: int = block) -> Any:
                shape = (x.shape[-1], size)
                return tf.einsum(
                    "bsd,de->bse", x, v1.get_variable(f"{name}{block}", initializer=normal(*shape))
                )

            q, k, v = (dense(y, name, 32) for name in "qkv")
            y += tf.matmul(tf.nn.softmax(tf.matmul(q, k, transpose_b=True) * 0.3), v)
            mean, variance = tf.nn.moments(y, [-1], keepdims=True)
            gain = v1.get_variable(f"gain{block}", initializer=normal(32))
            y = (y - mean) * tf.math.rsqrt(variance + 1e-3) * gain
            y += dense(tf.nn.gelu(dense(y, "in", 64)), "out", 32)
        return {
            "serving_default": ({"x": x, "word": word}, {"y": y, "word": table.lookup(word)}),
            "lookup": ({"word": word}, {"id": table.lookup(word)}),
        }

    save_v1(tf, folder, build, ("serve",))


def build_other_tag(tf: Any, folder: Path) -> None:
    def build(v1: Any) -> Mapping[str, Any]:
        x = v1.placeholder(tf.float32, [None])
        return {"serving_default": ({"x": x}, {"y": x + 1})}

    save_v1(tf, folder, build, ("serve", "tpu"))


def build_examples(tf: Any, folder: Path) -> None:
    """Serialised tf.Example messages, of which one feature may be left out."""
    features = {
        "size": tf.io.FixedLenFeature([2], tf.float32),
        "rooms": tf.io.FixedLenFeature([], tf.int64),
        "city": tf.io.FixedLenFeature([], tf.string),
        "tags": tf.io.VarLenFeature(tf.string),
    }

    def body(examples: Any) -> dict[str, Any]:
        parsed = tf.io.parse_example(examples, features)
        total = tf.reduce_sum(parsed["size"], axis=1) + tf.cast(parsed["rooms"], tf.float32)
        return {"total": total, "city": parsed["city"]}

    save(tf, folder, tf.TensorSpec([None], tf.string, "examples"), body=body)


def build_examples_v1(tf: Any, folder: Path) -> None:
    """The same by the op of version 1."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        texts = v1.placeholder(tf.string, [None], "texts")
        parsed = tf.raw_ops.ParseExample(
            serialized=texts,
            names=tf.constant([], tf.string),
            sparse_keys=[],
            dense_keys=[tf.constant("size"), tf.constant("rooms")],
            dense_defaults=[tf.constant([], tf.float32), tf.constant([], tf.int64)],
            sparse_types=[],
            dense_shapes=[[2], []],
        )
        total = tf.reduce_sum(parsed.dense_values[0], axis=1)
        v1.saved_model.simple_save(session, str(folder), {"texts": texts}, {"total": total})


def build_no_signature(tf: Any, folder: Path) -> None:
    tf.saved_model.save(tf.Module(), str(folder))


def build_fixed_batch(tf: Any, folder: Path) -> None:
    save(tf, folder, tf.TensorSpec([2, 4], tf.float32, "x"), body=lambda x: {"y": x * 2})


def build_total(tf: Any, folder: Path) -> None:
    """One number for all instances, and a text without a dimension."""
    save(
        tf,
        folder,
        tf.TensorSpec([None, 2], tf.float32, "x"),
        body=lambda x: {"total": tf.reduce_sum(x), "text": tf.constant(b"end\0")},
    )


def build_scalar_input(tf: Any, folder: Path) -> None:
    save(
        tf,
        folder,
        tf.TensorSpec([None, 2], tf.float32, "x"),
        tf.TensorSpec([], tf.float32, "scale"),
        tf.TensorSpec([], tf.string, "unit"),
        body=lambda x, scale, unit: {"y": x * scale, "unit": tf.fill([tf.shape(x)[0]], unit)},
    )


def build_any_shape(tf: Any, folder: Path) -> None:
    save(tf, folder, tf.TensorSpec(None, tf.float32, "x"), body=lambda x: {"y": x + 1})


def build_unknown_size(tf: Any, folder: Path) -> None:
    save(
        tf,
        folder,
        tf.TensorSpec([None, None, 3], tf.int32, "x"),
        tf.TensorSpec([None], tf.bool, "b"),
        tf.TensorSpec([None], tf.string, "s"),
        body=lambda x, b, s: {"y": tf.reduce_sum(x, [1, 2]), "b": b, "s": s},
    )


def build_ragged(tf: Any, folder: Path) -> None:
    save(
        tf,
        folder,
        tf.TensorSpec([None], tf.string, "text"),
        body=lambda text: {"words": tf.strings.split(text)},
    )


def build_sparse_input(tf: Any, folder: Path) -> None:
    def build(v1: Any) -> Mapping[str, Any]:
        x = v1.sparse_placeholder(tf.float32, [None, 3])
        return {"serving_default": ({"x": x}, {"y": tf.sparse.reduce_sum(x, axis=1)})}

    save_v1(tf, folder, build, ("serve",))


def build_no_inputs(tf: Any, folder: Path) -> None:
    save(tf, folder, body=lambda: {"y": tf.constant([1.0])})


def build_checks(tf: Any, folder: Path) -> None:
    """Positive integers below ten only; zero makes an error that is not the input's."""

    def body(x: Any) -> dict[str, Any]:
        with tf.control_dependencies([tf.debugging.assert_non_negative(x, message="x must not be negative")]):
            return {"y": tf.gather(tf.range(10), x), "z": tf.io.read_file(tf.strings.as_string(x[0]))[None]}

    save(tf, folder, tf.TensorSpec([None], tf.int32, "x"), body=body)


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
    assert (runtime.exact, runtime.framework, runtime.warnings) == (False, "TENSORFLOW", ())


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


# ---- models that cannot be loaded


def broken(models: Any, tmp_path: Path) -> Path:
    return Path(shutil.copytree(models("dense"), tmp_path / "broken"))


def refused(load: Any, folder: Path) -> str:
    with pytest.raises(LoadFailed) as caught:
        load(folder)
    message = caught.value.message
    assert "\n" not in message
    assert str(folder) not in message
    return message


def test_no_model_here_but_one_below(load: Any, models: Any, tmp_path: Path) -> None:
    shutil.copytree(models("dense"), tmp_path / "17")

    assert "There is one in its folder 17: use that as deploymentUri" in refused(load, tmp_path)


@pytest.mark.parametrize("keep", [0.3, 0.9])
def test_a_model_file_cut_short(load: Any, models: Any, tmp_path: Path, keep: float) -> None:
    folder = broken(models, tmp_path)
    whole = (folder / "saved_model.pb").read_bytes()
    (folder / "saved_model.pb").write_bytes(whole[: int(len(whole) * keep)])

    assert "is cut short or is not a SavedModel" in refused(load, folder)


@pytest.mark.parametrize(
    ("name", "content"),
    [("saved_model.pb", b"no"), ("saved_model.pbtxt", b"no"), ("saved_model.pbtxt", b"\xff")],
)
def test_a_file_that_is_no_model(load: Any, tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)

    assert "is cut short or is not a SavedModel" in refused(load, tmp_path)


def test_an_empty_model_file(load: Any, tmp_path: Path) -> None:
    (tmp_path / "saved_model.pb").touch()

    assert "(found: no graph at all)" in refused(load, tmp_path)


@pytest.mark.parametrize("missing", ["variables", "variables/variables.data-00000-of-00001"])
def test_variables_are_missing(load: Any, models: Any, tmp_path: Path, missing: str) -> None:
    folder = broken(models, tmp_path)
    path = folder / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()

    assert "Check that the exported folder was copied whole, with variables/" in refused(load, folder)


def test_variables_are_cut_short(load: Any, models: Any, tmp_path: Path) -> None:
    folder = broken(models, tmp_path)
    (folder / "variables" / "variables.data-00000-of-00001").write_bytes(b"")

    message = refused(load, folder)

    assert "cannot load the SavedModel: Read less bytes than requested. " in message
    assert "copied whole" in message


@pytest.mark.parametrize("inside", ["a function", "a function behind a long text"])
def test_an_op_that_only_a_function_names(load: Any, models: Any, tmp_path: Path, inside: str) -> None:
    """However long the names are that surround it in what TensorFlow says."""
    folder = broken(models, tmp_path)

    def rename(graph: Any) -> None:
        nodes = [node for one in graph.library.function for node in one.node_def if node.op == "Softmax"]
        assert nodes
        for node in nodes:
            node.op = "FancySoftmax"
            if inside != "a function":
                node.name = "long_name" * 100

    edit_graph(folder, rename)

    message = refused(load, folder)

    assert "The graph uses the op FancySoftmax, which TensorFlow" in message
    assert "copied whole" not in message


def test_a_graph_that_is_wrong_is_not_blamed_on_the_copy(load: Any, models: Any, tmp_path: Path) -> None:
    folder = broken(models, tmp_path)

    def spoil(graph: Any) -> None:
        for one in graph.library.function:
            for node in one.node_def:
                if node.op == "Softmax":
                    del node.attr["T"]

    edit_graph(folder, spoil)

    message = refused(load, folder)

    assert "attr not found: T" in message
    assert "Export the model again" in message
    assert "copied whole" not in message


def edit_graph(folder: Path, edit: Callable[[Any], None]) -> None:
    """Change the graph of a SavedModel."""
    from tensorflow.core.protobuf import saved_model_pb2

    file = folder / "saved_model.pb"
    saved = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    edit(saved.meta_graphs[0].graph_def)
    file.write_bytes(saved.SerializeToString())


@pytest.mark.parametrize(
    "text",
    [
        "Graph execution error:\n\n\tNode: x\nOp type not registered 'Fancy' in binary running on vm.",
        f"{'x' * 3000} No op named Fancy in defined operations.",
    ],
)
def test_an_op_is_found_in_the_whole_text_and_its_causes(models: Any, tmp_path: Path, text: str) -> None:
    from serving.runtimes.tensorflow_runtime.runtime import _to_load_error

    error = RuntimeError("Graph execution error:")
    error.__cause__ = ValueError(text)

    assert "The graph uses the op Fancy, which" in _to_load_error(error, tmp_path).message


def test_another_tag(load: Any, models: Any) -> None:
    assert 'no graph with just the tag "serve" (found: serve, tpu)' in refused(load, models("other_tag"))


def test_no_signature(load: Any, models: Any) -> None:
    assert "The SavedModel has no signature" in refused(load, models("no_signature"))


def test_an_op_that_is_not_there(load: Any, models: Any, tmp_path: Path) -> None:
    folder = broken(models, tmp_path)
    pb = folder / "saved_model.pb"
    pb.write_bytes(pb.read_bytes().replace(b"Softmax", b"Hardmax").replace(b"MatMul", b"MadMul"))

    assert "assets.extra/ as a .so file" in refused(load, folder)


def test_custom_ops_that_cannot_be_loaded(load: Any, models: Any, tmp_path: Path) -> None:
    folder = broken(models, tmp_path)
    (folder / "assets.extra").mkdir()
    (folder / "assets.extra" / "ops.so").write_bytes(b"no library")

    assert "assets.extra/ops.so cannot be loaded as custom ops: ops.so" in refused(load, folder).replace(
        "assets.extra/ops.so: ", "ops.so: "
    )


# ---- recorded warm-up requests


@pytest.fixture
def recorded(tf: Any, models: Any, load: Any, tmp_path: Path) -> Callable[..., Any]:
    """The runtime of a model with these records as its warm-up file."""

    def runtime(model: str, *records: bytes, damage: int = 0) -> Any:
        folder = shutil.copytree(models(model), tmp_path / "recorded")
        path = folder / warmup_records.WARMUP_FILE
        path.parent.mkdir()
        with tf.io.TFRecordWriter(str(path)) as writer:
            for record in records:
                writer.write(record)
        if damage:
            path.write_bytes(path.read_bytes()[:-damage])
        return load(folder)

    return runtime


def log() -> Any:
    """A record as the package of TensorFlow Serving writes it."""
    from tensorflow_serving.apis import prediction_log_pb2

    return prediction_log_pb2.PredictionLog()


def record(signature: str, **inputs: Any) -> bytes:
    import tensorflow

    made = log()
    request = made.predict_log.request
    request.model_spec.signature_name = signature
    for alias, value in inputs.items():
        request.inputs[alias].CopyFrom(tensorflow.make_tensor_proto(value))
    written: bytes = made.SerializeToString()
    return written


def test_recorded_requests(recorded: Any) -> None:
    runtime = recorded(
        "default_v1",
        record("", x=normal(2, 16, 32), word=[b"dog", b"cow"]),
        record("lookup", word=[b"cat"]),
    )

    (first, no_parameters), (second, parameters) = runtime.warmup_requests()

    assert no_parameters == {}
    assert_same(first, {"x": normal(2, 16, 32), "word": strings(b"dog", b"cow")})
    assert set(runtime.predict(first)) == {"y", "word"}
    assert parameters == {"signature_name": "lookup"}
    assert runtime.predict(second, **parameters)["id"].tolist() == [0]


def test_a_recorded_input_without_dimension_is_repeated(recorded: Any) -> None:
    runtime = recorded("scalar_input", record("", x=normal(3, 2), scale=np.float32(2), unit=b"m"))

    ((instances, _),) = runtime.warmup_requests()

    assert instances["scale"].tolist() == [2, 2, 2]
    np.testing.assert_array_equal(runtime.predict(instances)["y"], normal(3, 2) * 2)


def test_no_file_no_requests(load: Any) -> None:
    assert list(load("dense").warmup_requests()) == []


def test_what_a_damaged_file_has_before_is_used(recorded: Any) -> None:
    """And the version's owner is warned."""
    good = record("", x=normal(1, 30))
    runtime = recorded("dense", good, good, damage=3)

    assert len(list(runtime.warmup_requests())) == len(list(runtime.warmup_requests())) == 1
    (warning,) = runtime.warnings
    assert "tf_serving_warmup_requests: The file is damaged, the rest of it is not used" in warning


@pytest.mark.parametrize(
    "bad", [b"\xff\xff", b"\x32\x07\x0a\x05\x12\x03\x0a\x01x\x12\xff"], ids=["not a log", "bad length"]
)
def test_a_record_that_cannot_be_read_costs_no_other(recorded: Any, bad: bytes) -> None:
    """The version's owner is warned of how many there are, and of the first."""
    made = log()
    made.predict_log.request.inputs["x"].dtype = 77
    good = record("", x=normal(1, 30))
    runtime = recorded("dense", good, bad, made.SerializeToString(), good)

    assert len(list(runtime.warmup_requests())) == 2
    (warning,) = runtime.warnings
    assert "Records that cannot be read are not used: 2, as record 2: " in warning


def test_recorded_examples(tf: Any, recorded: Any) -> None:
    """Those of classify, regress and both at once, as their signatures take them; a context is in each."""
    example = tf.train.Example()
    example.features.feature["word"].bytes_list.value.append(b"dog")
    context = tf.train.Example()
    context.features.feature["weight"].float_list.value.append(2)
    classify, regress, both = log(), log(), log()
    for request in (classify.classify_log.request, regress.regress_log.request):
        request.input.example_list.examples.append(example)
    classify.classify_log.request.model_spec.signature_name = "lookup"
    for name in ("lookup", ""):
        both.multi_inference_log.request.tasks.add().model_spec.signature_name = name
    given = both.multi_inference_log.request.input.example_list_with_context
    given.examples.append(example)
    given.context.CopyFrom(context)

    runtime = recorded("default_v1", *(one.SerializeToString() for one in (classify, regress, both)))
    (lookup, named), (default, unnamed), (shared, several) = runtime.warmup_requests()

    assert_same(lookup, {"word": strings(example.SerializeToString())})
    assert named == {"signature_name": "lookup"}
    assert sorted(default) == ["word", "x"]
    assert unnamed == {}
    assert several == {"signature_names": ("lookup", "")}
    merged = tf.train.Example.FromString(shared["inputs"][0])
    assert sorted(merged.features.feature) == ["weight", "word"]
    assert runtime.predict(shared, signature_names=("lookup",))["lookup/id"].shape == (1,)


def test_sessions_and_streams_are_left_out_aloud(recorded: Any, caplog: pytest.LogCaptureFixture) -> None:
    session, stream = log(), log()
    session.session_run_log.SetInParent()
    stream.predict_streamed_log.SetInParent()
    records = [session.SerializeToString(), record("", x=normal(1, 30)), stream.SerializeToString()]

    with caplog.at_level(logging.WARNING):
        requests = list(recorded("dense", *records).warmup_requests())

    assert len(requests) == 1
    assert "2 records are sessions or streams and are not used" in caplog.text


def test_at_most_a_thousand_requests(
    recorded: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert warmup_records.MAX_RECORDS == 1000
    monkeypatch.setattr(warmup_records, "MAX_RECORDS", 3)

    with caplog.at_level(logging.WARNING):
        assert len(list(recorded("dense", *[record("", x=normal(1, 30))] * 4).warmup_requests())) == 3

    assert "more than 3 records" in caplog.text


# ---- the process


def test_threads_and_import_in_a_fresh_process(models: Any) -> None:
    """Importing starts no thread beyond TensorFlow's own import, and the eager runtime is never begun."""
    program = """if True:
        import os, sys, logging
        import numpy as np
        import tensorflow
        def threads(): return len(os.listdir("/proc/self/task"))
        before = threads()
        from pathlib import Path
        from serving.runtimes import LoadSpec
        from serving.runtimes.tensorflow_runtime import runtime
        assert threads() == before, "the import started a thread"
        loaded = runtime.load_model(LoadSpec(Path(sys.argv[1]), threads=1))
        loaded.predict(loaded.make_synthetic_rows(64))
        from tensorflow.python.eager import context
        assert not context.context()._initialized
        assert threads() - before <= 4, threads() - before
        assert not any(name.startswith(("xgboost", "tensorflow_serving")) for name in sys.modules)
    """
    run = subprocess.run(
        [sys.executable, "-c", program, str(models("dense"))],
        env=os.environ | QUIET,
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stderr
    assert "deprecated" not in run.stderr


# ---- what it tells of itself


def example_of(load: Any, model: str) -> Any:
    """The example of a model, with its answer; a client gets the same."""
    runtime = load(model)
    schema = infer_model_schema(runtime, Path())
    request = {"instances": [schema.example] * runtime._request_rows}
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
