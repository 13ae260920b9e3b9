"""What TensorFlow answers for SavedModels: `python -m tests.compat.saved_model_answers FOLDER...`.

Prints a line of JSON for each: of each signature its inputs, with their types, and the outputs or the error.
What `tf.saved_model.load` does not load is loaded into a session, as version 1 does.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

# For inputs that take examples.
FEATURES = {"x": 2.0, "x2": 3.0}
ROWS = 2


def answers(folder: str) -> dict[str, Any]:
    """By signature; `{"error": ...}` for a model that cannot be loaded."""
    import tensorflow as tf

    try:
        signatures = tf.saved_model.load(folder, tags=["serve"]).signatures
    except Exception:
        return _of_session(tf, folder)
    return {
        name: _answer(tf, function, function.structured_input_signature[1])
        for name, function in signatures.items()
    }


def _of_session(tf: Any, folder: str) -> dict[str, Any]:
    """What a session answers."""
    with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph) as session:
        try:
            definitions = tf.compat.v1.saved_model.load(session, ["serve"], folder).signature_def
        except Exception as error:
            return {"error": _said(error)}
        told = {}
        for name, definition in definitions.items():
            feeds = {alias: info.name for alias, info in definition.inputs.items()}
            fetches = {alias: info.name for alias, info in definition.outputs.items()}
            specs = {
                alias: tf.TensorSpec.from_tensor(graph.get_tensor_by_name(feed))
                for alias, feed in feeds.items()
            }

            def run(feeds: Any = feeds, fetches: Any = fetches, **inputs: Any) -> dict[str, Any]:
                return dict(session.run(fetches, {feeds[alias]: array for alias, array in inputs.items()}))

            told[name] = _answer(tf, run, specs)
        return told


def _answer(tf: Any, ask: Callable[..., Any], specs: Mapping[str, Any]) -> dict[str, Any]:
    with tf.init_scope():
        inputs = {
            alias: _made_up(tf, spec, number) for number, (alias, spec) in enumerate(sorted(specs.items()))
        }
    told: dict[str, Any] = {"inputs": {alias: _told(array) for alias, array in inputs.items()}}
    eager = tf.executing_eagerly()
    try:
        outputs = ask(**{alias: tf.constant(array) if eager else array for alias, array in inputs.items()})
    except Exception as error:
        return told | {"error": _said(error)}
    arrays = {alias: output.numpy() if eager else np.asarray(output) for alias, output in outputs.items()}
    return told | {"outputs": {alias: _told(array) for alias, array in arrays.items()}}


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]


def _made_up(tf: Any, spec: Any, number: int) -> Any:
    shape = [ROWS] if spec.shape.rank is None else [ROWS if size is None else size for size in spec.shape]
    if spec.dtype == tf.string:
        features = {
            name: tf.train.Feature(float_list=tf.train.FloatList(value=[value]))
            for name, value in FEATURES.items()
        }
        example = tf.train.Example(features=tf.train.Features(feature=features))
        return np.full(shape, example.SerializeToString(deterministic=True), object)
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape) % 5 + number
    return values.astype(spec.dtype.as_numpy_dtype)


def _told(array: Any) -> dict[str, Any]:
    texts = array.dtype == object
    values = _base64(array.tolist()) if texts else array.tolist()
    return {"dtype": "bytes" if texts else array.dtype.name, "shape": list(array.shape), "values": values}


def _base64(values: Any) -> Any:
    if isinstance(values, list):
        return [_base64(value) for value in values]
    return {"b64": base64.b64encode(values).decode()}


if __name__ == "__main__":
    for folder in sys.argv[1:]:
        print(json.dumps({"folder": str(Path(folder)), "answers": answers(folder)}), flush=True)
