"""Shapes that a signature declares and no placeholder has: what the graph accepts is accepted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.errors import InvalidInputs
from serving.runtimes import LoadSpec
from serving.runtimes.instance_batch import DependentColumns, WholeTensors, concatenation_key
from serving.runtimes.json_codec import InstancesDecoder, encode_predictions
from tests.serving.runtimes.test_tensorflow_shared import export


@pytest.fixture(scope="module")
def runtime(tf: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """TensorFlow Serving's first example: x / 2 + 2 of what is parsed from examples; and a product."""
    from serving.runtimes.tensorflow_runtime.runtime import load_model

    def build(tf: Any) -> Any:
        v1 = tf.compat.v1
        examples = v1.placeholder(tf.string, [None], "tf_example")
        parsed = tf.io.parse_example(examples, {"x": tf.io.FixedLenFeature([1], tf.float32)})
        x = tf.identity(parsed["x"], name="x")
        y = x * v1.get_variable("a", initializer=0.5) + v1.get_variable("b", initializer=2.0)
        product = tf.matmul(x, v1.get_variable("w", initializer=np.ones((1, 2), np.float32)))
        return {
            "product": ({"x": x}, {"z": product}),
            "regress": ({"inputs": examples}, {"outputs": y}),
            "serving_default": ({"x": x}, {"y": y}),
        }

    folder = tmp_path_factory.mktemp("model")
    export(tf, folder, build)
    return load_model(LoadSpec(folder))


def predicted(runtime: Any, body: dict[str, Any]) -> Any:
    instances, parameters = InstancesDecoder().decode(json.dumps(body).encode(), runtime.input_format)
    return [
        row["y"]
        for row in json.loads(encode_predictions(runtime.predict(instances, **parameters)))["predictions"]
    ]


@pytest.mark.parametrize(
    ("instances", "predictions"),
    [
        ([1.0, 2.0, 5.0], [2.5, 3.0, 4.5]),
        ([[1.0], [2.0]], [[2.5], [3.0]]),
        ([[1.0, 2.0], [4.0, 6.0]], [[2.5, 3.0], [4.0, 5.0]]),
        ([{"x": 1.0}, {"x": 2.0}], [2.5, 3.0]),
    ],
)
def test_any_shape_that_the_graph_accepts(runtime: Any, instances: Any, predictions: Any) -> None:
    assert predicted(runtime, {"instances": instances}) == predictions


def test_a_shape_that_the_graph_does_not_accept(runtime: Any) -> None:
    with pytest.raises(InvalidInputs, match="ndims"):
        predicted(runtime, {"instances": [1.0, 2.0], "signature_name": "product"})


def test_whole_tensors_of_any_shape(runtime: Any) -> None:
    answer = runtime.predict(WholeTensors({"x": np.array(4, np.float32)}))

    assert answer.values["y"].tolist() == 4.0


def test_undeclared_shapes_share_no_call_and_declared_ones_do(runtime: Any) -> None:
    """Rows of which nothing is declared may depend on each other."""

    def read(instances: list[Any]) -> Any:
        return InstancesDecoder().decode(json.dumps({"instances": instances}).encode(), runtime.input_format)[
            0
        ]

    assert runtime.mergeable
    assert isinstance(read([1.0, 2.0]), DependentColumns)
    assert concatenation_key(read([1.0])) != concatenation_key(read([2.0]))
    assert concatenation_key(read([[1.0]])) == concatenation_key(read([[2.0]]))


def test_the_schema_says_that_a_shape_is_not_enforced(runtime: Any) -> None:
    (x,) = runtime.infer_schema().signatures["serving_default"].inputs

    assert (x.shape, x.enforced) == ((-1, 1), False)


def test_a_placeholder_enforces_its_shape(tf: Any, tmp_path: Path) -> None:
    from serving.runtimes.tensorflow_runtime.runtime import load_model

    def build(tf: Any) -> Any:
        x = tf.compat.v1.placeholder(tf.float32, [None, 1], "x")
        return {"serving_default": ({"x": x}, {"y": x + 1})}

    export(tf, tmp_path, build)
    with pytest.raises(InvalidInputs, match="expects shape"):
        predicted(load_model(LoadSpec(tmp_path)), {"instances": [1.0, 2.0]})


def test_rows_that_are_declared_as_a_scalar(tf: Any, tmp_path: Path) -> None:
    """As early exporters did; they noted shapes in the graph, which a scalar contradicts."""
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    from serving.runtimes.tensorflow_runtime.runtime import load_model

    def build(tf: Any) -> Any:
        examples = tf.compat.v1.placeholder(tf.string, [None], "tf_example")
        parsed = tf.io.parse_example(examples, {"x": tf.io.FixedLenFeature([1], tf.float32)})
        x = tf.identity(parsed["x"], name="x")
        return {"serving_default": ({"x": x}, {"y": tf.multiply(x, 0.5, name="half") + 3})}

    export(tf, tmp_path, build)
    file = tmp_path / "saved_model.pb"
    saved = SavedModel.FromString(file.read_bytes())
    (graph,) = saved.meta_graphs
    graph.signature_def["serving_default"].inputs["x"].tensor_shape.ClearField("dim")
    (half,) = [node for node in graph.graph_def.node if node.name == "half"]
    noted = half.attr["_output_shapes"].list.shape.add()
    for size in (-1, 1):
        noted.dim.add(size=size)
    file.write_bytes(saved.SerializeToString())

    runtime = load_model(LoadSpec(tmp_path))

    assert predicted(runtime, {"instances": [1.0, 2.0, 5.0]}) == [3.5, 4.0, 5.5]
    assert predicted(runtime, {"instances": [[2.0]]}) == [[4.0]]
    assert runtime.make_synthetic_rows(2) is not None


def test_a_placeholder_of_an_early_graph_without_dimensions_has_any_shape(tf: Any, tmp_path: Path) -> None:
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    from serving.runtimes.tensorflow_runtime.runtime import load_model

    def build(tf: Any) -> Any:
        x = tf.compat.v1.placeholder(tf.float32, [], "x")
        return {"serving_default": ({"x": x}, {"y": x + 1})}

    export(tf, tmp_path, build)
    file = tmp_path / "saved_model.pb"
    saved = SavedModel.FromString(file.read_bytes())
    saved.meta_graphs[0].graph_def.versions.producer = 21
    file.write_bytes(saved.SerializeToString())

    assert predicted(load_model(LoadSpec(tmp_path)), {"instances": [1.0, 2.0]}) == [2.0, 3.0]
