"""SavedModels with the graphs and signatures that TensorFlow Serving's own tests ask.

`python -m tests.compat.serving_models FOLDER NAME...` writes them, in a process of its own because importing
TensorFlow is slow.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

HALF_PLUS_TWO, HALF_PLUS_TWO_TF2, HALF_PLUS_THREE = "half_plus_two", "half_plus_two_tf2", "half_plus_three"
TENSORS = "tensors"
SAVED, SEVERAL, SEQUENTIAL, MIRRORED = "saved", "several", "sequential", "mirrored"
ALL = (HALF_PLUS_TWO, HALF_PLUS_TWO_TF2, HALF_PLUS_THREE, TENSORS, SAVED, SEVERAL, SEQUENTIAL, MIRRORED)

# What the builder of a signature yields: its name, inputs and outputs by alias, and its method.
Built = tuple[str, dict[str, Any], dict[str, Any], str]

PREDICT, CLASSIFY, REGRESS = (f"tensorflow/serving/{verb}" for verb in ("predict", "classify", "regress"))


def write(root: Path, names: Iterable[str]) -> None:
    """Write these below a folder."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-m", __name__, str(root), *names]
    subprocess.run(command, env=environment, check=True, timeout=300, capture_output=True)


def _half_plus(tf: Any, number: float) -> Iterator[Built]:
    """y = x / 2 + 2 or 3, y2 = x / 2 + 3 and y3 = x2 / 2 + 3, of numbers and of examples."""
    v1 = tf.compat.v1
    half, offset, three = (
        v1.get_variable(name, initializer=value) for name, value in (("a", 0.5), ("b", number), ("c", 3.0))
    )
    examples = v1.placeholder(tf.string, name="tf_example")
    features = {
        "x": tf.io.FixedLenFeature([1], tf.float32),
        "x2": tf.io.FixedLenFeature([1], tf.float32, [0.0]),
    }
    parsed = tf.io.parse_example(examples, features)
    x, x2 = tf.identity(parsed["x"], "x"), tf.identity(parsed["x2"], "x2")
    y, y2, y3 = half * x + offset, half * x + three, half * x2 + three
    yield "serving_default", {"x": x}, {"y": y}, PREDICT
    yield "regress_x_to_y", {"inputs": examples}, {"outputs": y}, REGRESS
    yield "regress_x_to_y2", {"inputs": examples}, {"outputs": y2}, REGRESS
    yield "regress_x2_to_y3", {"inputs": x2}, {"outputs": y3}, REGRESS
    yield "classify_x_to_y", {"inputs": examples}, {"scores": y}, CLASSIFY
    yield "classify_x2_to_y3", {"inputs": x2}, {"scores": y3}, CLASSIFY


def _tensors(tf: Any) -> Iterator[Built]:
    """Signatures that answer what they are given, and some that always answer alike."""
    given = tf.compat.v1.placeholder

    def passed(**types: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        inputs = {name: given(dtype, None) for name, dtype in types.items()}
        return inputs, {name: tf.identity(tensor) for name, tensor in inputs.items()}

    for name in ("serving_default", "predict_images"):
        yield name, *passed(default=tf.int32), PREDICT
    for name in (
        "float",
        "double",
        "string",
        "half",
        "bool",
        "int8",
        "uint8",
        "int16",
        "uint16",
        "uint32",
        "int64",
        "uint64",
    ):
        dtype = {"float": "float32", "double": "float64", "half": "float16"}.get(name, name)
        yield name, *passed(default=getattr(tf, dtype)), PREDICT
    several = {"int_tensor": tf.int32, "str_tensor": tf.string}
    yield "named", *passed(**several, float_tensor=tf.float32, dbl_tensor=tf.float64), PREDICT
    yield "column", *passed(int_tensor=tf.int32), PREDICT
    yield "columns", *passed(**several, bin_tensor=tf.string), PREDICT
    yield "pair", *passed(**several), PREDICT
    yield "text", *passed(str_tensor=tf.string), PREDICT
    yield "bytes", *passed(str_tensor_bytes=tf.string), PREDICT
    printed = {
        **several,
        "float_tensor": tf.float32,
        "double_scalar_tensor": tf.float64,
        "str_tensor_bytes": tf.string,
    }
    yield "printed", *passed(**printed), PREDICT

    any_number = given(tf.float32, [None], "any_number")

    def always(name: str, **outputs: Any) -> Built:
        anything = tf.cast(tf.reduce_sum(any_number) * 0, tf.int32)
        with tf.control_dependencies([anything]):
            return (
                name,
                {"x": any_number},
                {alias: tf.identity(value) for alias, value in outputs.items()},
                PREDICT,
            )

    yield always("no_rows", int_tensor=tf.zeros([0, 2], tf.int32))
    yield always(
        "no_rows_of_several",
        str_tensor=tf.fill([0, 1, 2], ""),
        float_tensor=tf.zeros([0, 3, 4]),
    )
    yield always("uneven", int_tensor=[[1, 2, 3], [4, 5, 6]], str_tensor=[["foo", "bar", "baz"]])
    yield always("uneven_without_rows", int_tensor=tf.zeros([0, 2], tf.int32), str_tensor=[["foo", "bar"]])
    yield always("scalar", tensor=1)
    yield always("nothing")
    yield always("complex", tensor=tf.constant([1 + 2j], tf.complex64))

    examples = given(tf.string, [None], "examples")

    def about(name: str, method: str, **outputs: Any) -> Built:
        with tf.control_dependencies([tf.size(examples)]):
            found = {alias: tf.identity(value) for alias, value in outputs.items()}
        return name, {"inputs": examples}, found, method

    yield about(
        "vehicles",
        CLASSIFY,
        classes=[["car", "bike", "bus"]] * 2,
        scores=[[0.2, 0.7, 0.1], [0.7, 0.1, 0.2]],
    )
    yield about("values", REGRESS, outputs=[0.2, 0.9, 1.0])
    yield about("infinite", REGRESS, outputs=[0.2, float("inf"), 1.0, float("-inf"), float("nan")])
    yield about("no_classes", CLASSIFY, classes=tf.fill([0, 0], ""), scores=tf.zeros([0, 0]))
    yield about("no_values", REGRESS, outputs=tf.zeros([0]))
    # The label of an example is itself, the value what is in it.
    itself = tf.expand_dims(tf.io.encode_base64(examples), 1)
    yield "labelled", {"inputs": examples}, {"classes": itself}, CLASSIFY
    kinds = {
        "names": tf.string,
        "ratings": tf.float32,
        "age": tf.int64,
        "intboolmix": tf.int64,
        "query": tf.string,
    }
    sparse = tf.io.parse_example(examples, {name: tf.io.VarLenFeature(kind) for name, kind in kinds.items()})
    yield "summed", {"inputs": examples}, {"outputs": _summed(tf, sparse)}, REGRESS


def _summed(tf: Any, parsed: Mapping[str, Any]) -> Any:
    """For each example its numbers and the lengths of its texts, added up."""
    dense = [tf.sparse.to_dense(tensor) for tensor in parsed.values()]
    numbers = [tf.strings.length(one) if one.dtype == tf.string else one for one in dense]
    return sum(tf.reduce_sum(tf.cast(one, tf.float32), 1) for one in numbers)


def _save_graph(tf: Any, folder: Path, built: Iterator[Built]) -> None:
    """A SavedModel of version 1."""
    v1 = tf.compat.v1
    builder = v1.saved_model.Builder(str(folder))
    info = v1.saved_model.build_tensor_info

    def infos(tensors: Mapping[str, Any]) -> dict[str, Any]:
        return {alias: info(tensor) for alias, tensor in tensors.items()}

    with v1.Session() as session:
        signatures = {
            name: v1.saved_model.build_signature_def(infos(inputs), infos(outputs), method)
            for name, inputs, outputs, method in built
        }
        session.run(v1.global_variables_initializer())
        builder.add_meta_graph_and_variables(session, ["serve"], signatures)
    builder.save()


def _save_half_plus_two(tf: Any, folder: Path) -> None:
    """y = x / 2 + 2 and its like, of TensorFlow 2, whose signatures are given their methods afterwards."""
    root = tf.Module()
    root.half, root.two, root.three = (tf.Variable(value) for value in (0.5, 2.0, 3.0))
    features = {
        "x": tf.io.FixedLenFeature([1], tf.float32),
        "x2": tf.io.FixedLenFeature([1], tf.float32, [0.0]),
    }

    def of_examples(offset: Any, output: str) -> Any:
        def compute(inputs: Any) -> Any:
            return {output: root.half * tf.io.parse_example(inputs, features)["x"] + offset}

        return tf.function(compute, input_signature=[tf.TensorSpec([None], tf.string, "inputs")])

    def of_numbers(name: str, offset: Any, output: str) -> Any:
        def compute(**inputs: Any) -> Any:
            return {output: root.half * inputs[name] + offset}

        return tf.function(compute).get_concrete_function(**{name: tf.TensorSpec(None, tf.float32, name)})

    signatures = {
        "serving_default": of_numbers("x", root.two, "y"),
        "regress_x_to_y": of_examples(root.two, "outputs"),
        "regress_x_to_y2": of_examples(root.three, "outputs"),
        "regress_x2_to_y3": of_numbers("inputs", root.three, "outputs"),
        "classify_x_to_y": of_examples(root.two, "scores"),
        "classify_x2_to_y3": of_numbers("inputs", root.three, "scores"),
    }
    tf.saved_model.save(root, str(folder), signatures)
    updater = tf.compat.v1.saved_model.signature_def_utils.MethodNameUpdater(str(folder))
    for name in signatures:
        if (verb := name.partition("_")[0]) in ("regress", "classify"):
            updater.replace_method_name(name, f"tensorflow/serving/{verb}", tags=["serve"])
    updater.save()


def _save_function(tf: Any, folder: Path) -> None:
    """y = v1 * v2 * x, of TensorFlow 2."""
    root = tf.train.Checkpoint(v1=tf.Variable(3.0), v2=tf.Variable(2.0))
    root.f = tf.function(lambda x: {"y": root.v1 * root.v2 * x})
    tf.saved_model.save(root, str(folder), root.f.get_concrete_function(tf.TensorSpec(None, tf.float32)))


def _save_functions(tf: Any, folder: Path) -> None:
    """Two signatures that answer 1 and 2 whatever they are asked."""
    root = tf.train.Checkpoint()
    anything = [tf.TensorSpec(None, tf.float32)]
    root.f = tf.function(lambda x: {"y": 1.0}, input_signature=anything)
    root.g = tf.function(lambda x: {"y": 2.0}, input_signature=anything)
    tf.saved_model.save(root, str(folder), {"serving_default": root.f, "custom_signature_key": root.g})


def _save_sequential(tf: Any, folder: Path, *layers: Any) -> None:
    """A model of Keras that answers what it is given; its tensors are named as by Keras 2."""
    first = tf.keras.layers.Input((1,), dtype="float32", name="x")
    last = tf.keras.layers.Lambda(lambda x: x, name="y")
    model = tf.keras.Sequential([first, *layers, last])
    signature = [tf.TensorSpec([None, 1], tf.float32, "x")]
    serve = tf.function(lambda x: {"y": model(x)}, input_signature=signature)
    tf.saved_model.save(model, str(folder), {"serving_default": serve})


def _save_mirrored(tf: Any, folder: Path) -> None:
    """The same, of two devices."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    with tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"]).scope():
        _save_sequential(tf, folder, tf.keras.layers.Dense(1, kernel_initializer="ones"))


def _save(root: Path, names: Iterable[str]) -> None:
    import tensorflow as tf

    graphs = {
        HALF_PLUS_TWO: functools.partial(_half_plus, tf, 2.0),
        HALF_PLUS_THREE: functools.partial(_half_plus, tf, 3.0),
        TENSORS: functools.partial(_tensors, tf),
    }
    others = {
        HALF_PLUS_TWO_TF2: _save_half_plus_two,
        SAVED: _save_function,
        SEVERAL: _save_functions,
        SEQUENTIAL: _save_sequential,
        MIRRORED: _save_mirrored,
    }
    for name in sorted(names, key=lambda name: name != MIRRORED):  # it must be the first to name devices
        if name in others:
            others[name](tf, root / name)
        else:
            with tf.Graph().as_default():
                _save_graph(tf, root / name, graphs[name]())


if __name__ == "__main__":
    _save(Path(sys.argv[1]), sys.argv[2:])
