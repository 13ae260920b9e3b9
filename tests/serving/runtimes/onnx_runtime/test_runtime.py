from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from skl2onnx import to_onnx
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from serving.errors import InvalidInputs, InvalidOutputs, LoadFailed
from serving.node.batch_equivalence import check_batch_equivalence
from serving.runtimes import LoadSpec, Runtime, load_model
from serving.runtimes.instance_batch import WholeTensors
from serving.runtimes.json_codec import InstancesDecoder, encode_predictions
from serving.runtimes.onnx_runtime.runtime import write_tiny_model
from serving.runtimes.output_equality import run_generator
from tests.serving.runtimes.onnx_runtime.models import (
    BFLOAT16,
    BOOL,
    DOUBLE,
    FLOAT,
    HALF,
    INT64,
    STRING,
    make_identity,
    make_model,
    make_network,
    write,
)

X = np.random.default_rng(5).normal(size=(40, 4)).astype(np.float32)
CLASSES = np.digitize(X[:, 0] - 2 * X[:, 1], [-1, 1])
NAMES = np.array(["setosa", "versicolor", "virginica"])[CLASSES]


def served(model: onnx.ModelProto, folder: Path) -> Runtime:
    return load_model(LoadSpec(write(model, folder)))


def own_answers(folder: Path, inputs: dict[str, Any]) -> dict[str, Any]:
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    return dict(zip([one.name for one in session.get_outputs()], session.run(None, inputs), strict=True))


def answers(runtime: Runtime, instances: list[Any], **parameters: Any) -> Any:
    """What a request gets, body included."""
    body = json.dumps({"instances": instances, **parameters}).encode()
    batch, others = InstancesDecoder().decode(body, runtime.input_format)
    return json.loads(encode_predictions(runtime.predict(batch, **others)))["predictions"]


def assert_same_floats(one: Any, other: Any) -> None:
    """To the bit: JSON has as many digits as a float needs."""
    assert np.array(one, np.float32).tobytes() == np.array(other, np.float32).tobytes()


def test_a_network_is_computed_as_by_onnxruntime_alone_and_in_batches(tmp_path: Path) -> None:
    runtime = served(make_network(), tmp_path)
    own = own_answers(tmp_path, {"x": X})["scores"]

    together = runtime.predict({"x": X})
    assert isinstance(together, dict)
    assert together["scores"].tobytes() == own.tobytes()
    assert_same_floats([row["scores"] for row in answers(runtime, X.tolist())], own)
    assert answers(runtime, [{"x": row} for row in X.tolist()]) == answers(runtime, X.tolist())
    assert run_generator(check_batch_equivalence(runtime)).merge


@pytest.mark.parametrize("labels", [CLASSES, NAMES], ids=["numbers", "texts"])
def test_scores_of_labels_are_a_column_for_each(labels: Any, tmp_path: Path) -> None:
    """A classifier that was converted with the usual options answers a map of its labels for each row."""
    pipeline = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, labels)
    runtime = served(to_onnx(pipeline, X[:1], target_opset=17), tmp_path)
    own = own_answers(tmp_path, {"X": X})
    assert isinstance(own["output_probability"][0], dict)

    answered = answers(runtime, X.tolist())
    outputs = {one.name: one for one in runtime.infer_schema().signatures["serving_default"].outputs}

    assert [row["output_label"] for row in answered] == own["output_label"].tolist()
    assert_same_floats(
        [row["output_probability"] for row in answered],
        [[row[label] for label in np.unique(labels).tolist()] for row in own["output_probability"]],
    )
    assert outputs["output_probability"].classes == tuple(np.unique(labels).tolist())
    assert outputs["output_probability"].shape == (-1, 3)
    assert run_generator(check_batch_equivalence(runtime)).merge


@pytest.mark.parametrize("kind", [RandomForestClassifier, RandomForestRegressor])
def test_forests(kind: Any, tmp_path: Path) -> None:
    forest = kind(n_estimators=5, max_depth=4, random_state=0).fit(X, CLASSES)
    options = {id(forest): {"zipmap": False}} if kind is RandomForestClassifier else None
    runtime = served(to_onnx(forest, X[:1], options=options, target_opset=17), tmp_path)
    own = own_answers(tmp_path, {"X": X})

    answered = runtime.predict({"X": X})
    assert isinstance(answered, dict)
    assert {name: values.tobytes() for name, values in answered.items()} == {
        name: values.tobytes() for name, values in own.items()
    }
    assert run_generator(check_batch_equivalence(runtime)).merge


def test_what_the_schema_tells(tmp_path: Path) -> None:
    model = make_model(
        [("words", STRING, ["rows"]), ("sizes", HALF, [None, 2])],
        [("same", STRING, ["rows"]), ("double", DOUBLE, [None, 2])],
        [("Identity", ["words"], ["same"]), ("Cast", ["sizes"], ["double"])],
    )
    model.graph.node[1].attribute.append(onnx.helper.make_attribute("to", DOUBLE))
    schema = served(model, tmp_path).infer_schema()
    signature = schema.signatures["serving_default"]

    assert schema.platform == "onnxruntime_onnx"
    assert [(one.name, one.datatype, one.shape) for one in signature.inputs] == [
        ("words", "BYTES", (-1,)),
        ("sizes", "FP16", (-1, 2)),
    ]
    assert [(one.name, one.datatype, one.shape) for one in signature.outputs] == [
        ("same", "BYTES", (-1,)),
        ("double", "FP64", (-1, 2)),
    ]
    assert set(schema.example) == {"words", "sizes"}
    assert set(schema.answer) == {"same", "double"}


@pytest.mark.parametrize(
    ("kind", "instances"),
    [
        (STRING, [["é", ""], ["a\0b", "c"]]),
        (BOOL, [[True, False], [False, False]]),
        (HALF, [[0.5, -2.0], [1.5, 0.0]]),
        (DOUBLE, [[0.1, 1e300], [1.5, -0.0]]),
        (INT64, [[1 << 62, -1], [0, 5]]),
    ],
)
def test_types(kind: int, instances: list[Any], tmp_path: Path) -> None:
    runtime = served(make_identity(kind), tmp_path)

    assert [row["y"] for row in answers(runtime, instances)] == instances


def test_texts_that_are_not_utf8(tmp_path: Path) -> None:
    runtime = served(make_identity(STRING, ["rows"]), tmp_path)

    with pytest.raises(InvalidInputs, match="Input x takes texts in UTF-8"):
        answers(runtime, [{"b64": base64.b64encode(b"\xff").decode()}])


def test_a_single_value_holds_for_the_whole_request(tmp_path: Path) -> None:
    model = make_model(
        [("x", FLOAT, ["rows"]), ("factor", FLOAT, [])],
        [("y", FLOAT, ["rows"])],
        [("Mul", ["x", "factor"], ["y"])],
    )
    runtime = served(model, tmp_path)

    assert answers(runtime, [{"x": 1.5, "factor": 2}, {"x": 3, "factor": 2}]) == [{"y": 3.0}, {"y": 6.0}]
    with pytest.raises(InvalidInputs, match="must be the same in every instance"):
        answers(runtime, [{"x": 1, "factor": 2}, {"x": 3, "factor": 4}])
    assert not runtime.mergeable


def test_an_unknown_rank_takes_any_shape(tmp_path: Path) -> None:
    runtime = served(make_identity(FLOAT, None), tmp_path)

    assert answers(runtime, [[[1.0], [2.0]]]) == [{"y": [[1.0], [2.0]]}]
    assert runtime.infer_schema().signatures["serving_default"].inputs[0].shape is None
    assert not runtime.mergeable


def test_inputs_with_a_default_keep_it(tmp_path: Path) -> None:
    model = make_model(
        [("x", FLOAT, ["rows"]), ("bias", FLOAT, [1])],
        [("y", FLOAT, ["rows"])],
        [("Add", ["x", "bias"], ["y"])],
        [onnx.helper.make_tensor("bias", FLOAT, [1], [10.0])],
    )
    runtime = served(model, tmp_path)

    assert answers(runtime, [1, 2]) == [{"y": 11.0}, {"y": 12.0}]


def test_a_fixed_batch(tmp_path: Path) -> None:
    runtime = served(make_identity(FLOAT, [2, 3]), tmp_path)

    assert answers(runtime, [[1, 2, 3], [4, 5, 6]]) == [{"y": [1, 2, 3]}, {"y": [4, 5, 6]}]
    with pytest.raises(InvalidInputs, match="takes exactly 2 instance"):
        answers(runtime, [[1, 2, 3]])


def test_rows_that_depend_on_each_other_share_no_call(tmp_path: Path) -> None:
    """The graph leaves the first dimension open, but computes a share of the whole."""
    model = make_model(
        [("x", FLOAT, ["rows"])], [("y", FLOAT, ["rows"])], [("Softmax", ["x"], ["y"])], axis=0
    )
    runtime = served(model, tmp_path)

    assert runtime.mergeable
    assert not run_generator(check_batch_equivalence(runtime)).merge


def test_answers_without_a_row_for_each_instance_are_tensors(tmp_path: Path) -> None:
    model = make_model(
        [("x", FLOAT, ["rows"])], [("total", FLOAT, [])], [("ReduceSum", ["x"], ["total"])], keepdims=0
    )
    runtime = served(model, tmp_path)

    whole = runtime.predict(WholeTensors({"x": np.array([1, 2, 3], np.float32)}))
    assert isinstance(whole, WholeTensors)
    assert whole.values["total"].shape == ()
    assert float(whole.values["total"]) == 6.0
    with pytest.raises(InvalidInputs, match="does not answer a row for each instance"):
        answers(runtime, [1, 2, 3])


def test_a_promise_of_rows_that_is_not_kept(tmp_path: Path) -> None:
    model = make_model(
        [("x", FLOAT, ["rows"])], [("y", FLOAT, ["rows"])], [("Compress", ["x", "chosen"], ["y"])],
        [onnx.helper.make_tensor("chosen", BOOL, [2], [True, False])],
    )  # fmt: skip

    with pytest.raises(InvalidOutputs, match="one row per instance"):
        answers(served(model, tmp_path), [1, 2])


@pytest.mark.parametrize(
    ("instances", "problem"),
    [
        ([[1.0, 2.0, 3.0]], r"Input x expects shape \[2\] per instance, got shape \[3\]"),
        ([[1.0, "red"]], "takes numbers"),
        ([{"z": [1.0, 2.0]}], "Expected tensor name: x"),
    ],
)
def test_instances_that_do_not_fit(instances: list[Any], problem: str, tmp_path: Path) -> None:
    runtime = served(make_identity(FLOAT), tmp_path)

    with pytest.raises(InvalidInputs, match=problem):
        answers(runtime, instances)


def test_values_that_the_graph_refuses(tmp_path: Path) -> None:
    weights = [onnx.helper.make_tensor("table", FLOAT, [5, 2], [0.0] * 10)]
    model = make_model(
        [("word", INT64, ["rows"])],
        [("y", FLOAT, ["rows", 2])],
        [("Gather", ["table", "word"], ["y"])],
        weights,
    )

    with pytest.raises(
        InvalidInputs, match=r"^Invalid inputs: node Gather: indices element out of data bounds"
    ):
        answers(served(model, tmp_path), [99])


def test_a_signature_may_be_named_and_has_one_name(tmp_path: Path) -> None:
    runtime = served(make_identity(FLOAT), tmp_path)

    assert answers(runtime, [[1, 2]], signature_name="serving_default") == [{"y": [1, 2]}]
    with pytest.raises(InvalidInputs, match="No signature found for signature key other"):
        answers(runtime, [[1, 2]], signature_name="other")


def count_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_threads_are_started_for_more_than_one_only(tmp_path: Path) -> None:
    write(make_network(), tmp_path)
    before = count_threads()
    alone = load_model(LoadSpec(tmp_path))
    assert count_threads() == before

    several = load_model(LoadSpec(tmp_path, threads=3))
    assert count_threads() == before + 2
    assert answers(alone, X.tolist()) == answers(several, X.tolist())


def test_the_model_of_the_warm_up(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)

    assert answers(load_model(LoadSpec(tmp_path)), [[0.5, 1.5], [1, 0]]) == [{"y": [-1.25]}, {"y": [0.5]}]


def test_unsupported_types_are_refused_at_load(tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match=r"Input x of the model is of the type tensor\(bfloat16\)"):
        served(make_identity(BFLOAT16), tmp_path)
