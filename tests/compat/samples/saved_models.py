"""Writes SavedModels with the signatures of those that samples of Google train in the cloud.

A program of its own, because importing TensorFlow is slow: `python saved_models.py FOLDER`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf


def named_numbers(names: list[str], output: str, width: int, dtype: Any = tf.float32) -> Any:
    """Numbers by name; the output has that many numbers for each row, or is one number where `width` is 0."""
    weights = tf.reshape(tf.range(len(names) * max(width, 1), dtype=tf.float32), (len(names), max(width, 1)))

    def serve(**inputs: Any) -> dict[str, Any]:
        columns = [tf.reshape(tf.cast(inputs[name], tf.float32), (-1, 1)) for name in names]
        scores = tf.matmul(tf.concat(columns, 1), weights)
        return {output: scores if width else tf.reshape(scores, (-1,))}

    return tf.function(serve).get_concrete_function(
        **{name: tf.TensorSpec([None], dtype, name=name) for name in names}
    )


def texts_to_vectors() -> Any:
    """Texts in, 512 numbers for each out, as the sentence encoder has it."""

    def serve(inputs: Any) -> dict[str, Any]:
        lengths = tf.cast(tf.strings.length(inputs), tf.float32)
        return {"outputs": tf.sin(tf.reshape(lengths, (-1, 1)) * tf.range(1.0, 513.0))}

    return tf.function(serve).get_concrete_function(tf.TensorSpec([None], tf.string, name="inputs"))


def images() -> Any:
    """A key and the bytes of an image in, the key and scores out."""

    def serve(key: Any, image_bytes: Any) -> dict[str, Any]:
        sizes = tf.cast(tf.strings.length(image_bytes), tf.float32)
        return {
            "key": tf.identity(key),
            "prediction": tf.cast(sizes, tf.int64),
            "scores": tf.stack([sizes, -sizes], 1),
        }

    text = tf.TensorSpec([None], tf.string)
    return tf.function(serve).get_concrete_function(key=text, image_bytes=text)


def examples() -> Any:
    """Serialized tf.train.Example in."""

    def serve(examples: Any) -> dict[str, Any]:
        found = tf.io.parse_example(examples, {"movie": tf.io.FixedLenFeature([1], tf.float32)})
        return {"rating": tf.reshape(found["movie"] * 2, (-1,))}

    return tf.function(serve).get_concrete_function(tf.TensorSpec([None], tf.string, name="examples"))


def census() -> Any:
    """What census models take as JSON: numbers and texts by name."""
    texts = [
        "workclass",
        "education",
        "marital_status",
        "occupation",
        "relationship",
        "race",
        "gender",
        "native_country",
    ]
    numbers = ["age", "education_num", "capital_gain", "capital_loss", "hours_per_week"]

    def serve(**inputs: Any) -> dict[str, Any]:
        score = tf.add_n([tf.cast(inputs[name], tf.float32) for name in numbers])
        score += tf.add_n([tf.cast(tf.strings.length(inputs[name]), tf.float32) for name in texts])
        return {"probability": tf.sigmoid(score / 100)}

    specs = {name: tf.TensorSpec([None], tf.string) for name in texts}
    specs |= {name: tf.TensorSpec([None], tf.float32) for name in numbers}
    return tf.function(serve).get_concrete_function(**specs)


def rows(width: int) -> Any:
    """A list of numbers in, one number out, as a Keras model has it."""

    def serve(inputs: Any) -> dict[str, Any]:
        return {"dense": tf.sigmoid(tf.reduce_mean(inputs, 1, keepdims=True))}

    return tf.function(serve).get_concrete_function(tf.TensorSpec([None, width], tf.float32, name="inputs"))


IRIS = ["sepal_length", "sepal_width", "petal_length", "petal_width"]
KINDS: dict[str, Callable[[], Any]] = {
    "kmeans": lambda: named_numbers(IRIS, "output", 0),
    "pca": lambda: named_numbers(IRIS, "result", 2),
    "fm": lambda: named_numbers(IRIS, "score", 3),
    "molecules": lambda: named_numbers(["TotalC", "TotalH", "TotalO", "TotalN"], "energy", 1),
    "encoder": texts_to_vectors,
    "images": images,
    "examples": examples,
    "census": census,
    "keras": lambda: rows(11),
    "keras-census": lambda: rows(14),
}


def main(folder: str) -> None:
    """Write all."""
    for kind, signature in KINDS.items():
        tf.saved_model.save(tf.Module(), f"{folder}/{kind}", signatures={"serving_default": signature()})


if __name__ == "__main__":
    main(*sys.argv[1:])
