"""The SavedModel of the golden exchanges with TensorFlow Serving: a signature for each form of request.

`python -m tests.wire.saved_model FOLDER` writes it, in a process of its own: importing TensorFlow is slow.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.bounds import HANG_SECONDS

# What the builder of a signature yields: its name, inputs and outputs by alias, and its method.
Built = tuple[str, dict[str, Any], dict[str, Any], str]

PREDICT, CLASSIFY, REGRESS = (f"tensorflow/serving/{verb}" for verb in ("predict", "classify", "regress"))


def write(folder: Path) -> None:
    """Write the model."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    subprocess.run(
        [sys.executable, "-m", __name__, str(folder)], env=environment, check=True, timeout=HANG_SECONDS
    )


def _signatures(tf: Any) -> Iterator[Built]:
    given = tf.compat.v1.placeholder

    x = given(tf.float32, [None], "x")
    yield "serving_default", {"x": x}, {"y": x / 2 + 3}, PREDICT

    examples = given(tf.string, [None], "examples")
    number = tf.io.parse_example(examples, {"x": tf.io.FixedLenFeature([1], tf.float32)})["x"]
    yield REGRESS, {"inputs": examples}, {"outputs": number / 2 + 3}, REGRESS

    text = tf.io.FixedLenFeature([], tf.string)
    parsed = tf.io.parse_example(examples, {"image": text, "caption": text})
    score = tf.cast(tf.strings.length(parsed["image"]), tf.float32) / 32
    classes = tf.stack([parsed["caption"], tf.fill(tf.shape(score), "other")], axis=1)
    scores = tf.stack([score, 1 - score], axis=1)
    yield "classify_objects", {"inputs": examples}, {"classes": classes, "scores": scores}, CLASSIFY
    yield "scores_alone", {"inputs": examples}, {"scores": scores}, CLASSIFY
    yield "classes_alone", {"inputs": examples}, {"classes": classes}, CLASSIFY

    readings = tf.io.parse_example(examples, {"sensor_readings": tf.io.FixedLenFeature([4], tf.float32)})
    yield (
        "readings",
        {"inputs": examples},
        {"outputs": tf.reduce_max(readings["sensor_readings"], 1)},
        REGRESS,
    )

    words = given(tf.string, [None], "words")
    yield "greet", {"words": words}, {"greetings": "hello " + words}, PREDICT
    yield "raw", {"words": words}, {"words_bytes": words}, PREDICT

    matrices = given(tf.float32, [None, 1, 2], "matrices")
    yield "turn", {"matrices": matrices}, {"turned": tf.transpose(matrices, [0, 2, 1])}, PREDICT

    tag = given(tf.string, [None], "tag")
    signal = given(tf.int64, [None, 5], "signal")
    sensor = given(tf.float32, [None, 2, 2], "sensor")
    inputs = {"tag": tag, "signal": signal, "sensor": sensor}
    outputs = {
        "tag": tag,
        "sum": tf.reduce_sum(signal, 1),
        "trace": tf.linalg.trace(sensor),
        "tag_bytes": tag,
    }
    yield "signals", inputs, outputs, PREDICT

    rows, columns = given(tf.float32, [None], "rows"), given(tf.float32, [None], "columns")
    table = rows[:, None] * columns[None, :]
    yield "table", {"rows": rows, "columns": columns}, {"table": table, "cells": tf.size(table)}, PREDICT

    factor = given(tf.float32, [], "factor")
    yield "scale", {"x": x, "factor": factor}, {"scaled": x * factor}, PREDICT
    yield "total", {"x": x}, {"total": tf.reduce_sum(x)}, PREDICT
    constants = {"answer": tf.constant([42.0], name="answer"), "half": tf.constant(0.5, name="half")}
    yield "constant", {}, constants, PREDICT
    yield "square", {"factor": factor}, {"square": factor * factor}, PREDICT

    real = given(tf.float64, [None], "real")
    yield "logarithm", {"real": real}, {"logarithm": tf.math.log(real)}, PREDICT

    types = [
        "bool",
        "string",
        "int8",
        "uint8",
        "int16",
        "int32",
        "uint32",
        "int64",
        "uint64",
        "float32",
        "float64",
    ]
    passed = {name: given(getattr(tf, name), [None], name) for name in types}
    yield "types", passed, {f"{name}_too": tf.identity(tensor) for name, tensor in passed.items()}, PREDICT


def _save(folder: str) -> None:
    import tensorflow as tf

    v1 = tf.compat.v1
    builder = v1.saved_model.Builder(folder)
    with tf.Graph().as_default(), v1.Session() as session:
        signatures = {}
        for name, inputs, outputs, method in _signatures(tf):
            infos = [
                {alias: v1.saved_model.build_tensor_info(tensor) for alias, tensor in tensors.items()}
                for tensors in (inputs, outputs)
            ]
            signatures[name] = v1.saved_model.build_signature_def(*infos, method)
        builder.add_meta_graph_and_variables(session, ["serve"], signatures)
    builder.save()


if __name__ == "__main__":
    _save(sys.argv[1])
