"""SavedModels of many kinds, built by name, and what compares their answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]


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
