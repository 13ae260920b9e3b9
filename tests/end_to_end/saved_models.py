"""SavedModels as other people have them. `python -m tests.end_to_end.saved_models FOLDER` writes them.

In a process of its own, because importing TensorFlow is slow. With each model: what it is asked, and what
TensorFlow answers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from serving.protocols.protos import load_message_class

KERAS, SHARED, WARMED = "keras", "shared", "warmed"


def write(root: Path) -> None:
    """Write all of them below a folder."""
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    subprocess.run([sys.executable, "-m", __name__, root], check=True, env=os.environ | quiet)


def _write_keras(tf: Any, folder: Path) -> None:
    """Of Keras 3, saved by `tf.saved_model.save`."""
    layers = [tf.keras.layers.Dense(3), tf.keras.layers.BatchNormalization(), tf.keras.layers.Dense(2)]
    model = tf.keras.Sequential([tf.keras.Input((4,)), *layers])
    tf.saved_model.save(model, str(folder))
    rows = [[1.0, 2.0, 3.0, 4.0], [0.5, 0.25, 0.0, -1.0]]
    ((_, answer),) = tf.saved_model.load(str(folder)).signatures["serving_default"](tf.constant(rows)).items()
    (folder / "asked.json").write_text(json.dumps({"instances": rows, "answer": answer.numpy().tolist()}))


def _write_shared(tf: Any, folder: Path) -> None:
    """x / 2 + 2 as TensorFlow Serving's first example has it; a signature declares a wrong type, one a tensor
    that is not there."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        examples = v1.placeholder(tf.string, [None], "tf_example")
        parsed = tf.io.parse_example(examples, {"x": tf.io.FixedLenFeature([1], tf.float32)})
        x = tf.identity(parsed["x"], name="x")
        y = x * v1.get_variable("a", initializer=0.5) + v1.get_variable("b", initializer=2.0)
        signatures = {
            "regress": v1.saved_model.regression_signature_def(examples, y),
            "serving_default": v1.saved_model.predict_signature_def({"x": x}, {"y": y}),
            "gone": v1.saved_model.predict_signature_def({"x": x}, {"y": y}),
        }
        # As that of TensorFlow Serving's half_plus_three.
        signatures["regress"].inputs["inputs"].dtype = tf.float32.as_datatype_enum
        signatures["gone"].inputs["x"].name = "nowhere:0"
        session.run(v1.global_variables_initializer())
        builder = v1.saved_model.Builder(str(folder))
        builder.add_meta_graph_and_variables(session, ["serve"], signatures)
        builder.save()


def _write_warmed(tf: Any, folder: Path) -> None:
    """The same with two recorded warm-up requests, of which the graph refuses the second."""
    _write_shared(tf, folder)
    (folder / "assets.extra").mkdir()
    with tf.io.TFRecordWriter(str(folder / "assets.extra" / "tf_serving_warmup_requests")) as writer:
        for signature, alias, value in (
            ("serving_default", "x", [1.0]),
            ("regress", "inputs", ["no example"]),
        ):
            record = load_message_class("tensorflow.serving.PredictionLog")()
            request = record.predict_log.request
            request.model_spec.signature_name = signature
            request.inputs[alias].ParseFromString(tf.make_tensor_proto(value).SerializeToString())
            writer.write(record.SerializeToString())


if __name__ == "__main__":
    import tensorflow

    _write_keras(tensorflow, Path(sys.argv[1], KERAS))
    _write_shared(tensorflow, Path(sys.argv[1], SHARED))
    _write_warmed(tensorflow, Path(sys.argv[1], WARMED))
