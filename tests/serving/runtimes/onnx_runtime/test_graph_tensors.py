from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import helper

from serving.errors import LoadFailed
from serving.runtimes.onnx_runtime.graph_tensors import describe_tensors, read_scalar_names
from serving.runtimes.onnx_runtime.session import open_session
from tests.serving.runtimes.onnx_runtime.models import FLOAT, STRING, make_model, write


def test_shapes_that_onnxruntime_does_not_tell_apart(tmp_path: Path) -> None:
    """Of a single value and of an unknown rank it says that there are no dimensions."""
    model = make_model(
        [("single", FLOAT, []), ("unknown", FLOAT, None), ("rows", STRING, ["rows", None, 3])],
        [("a", FLOAT, []), ("b", FLOAT, None), ("c", STRING, ["rows", None, 3])],
        [("Identity", ["single"], ["a"]), ("Identity", ["unknown"], ["b"]), ("Identity", ["rows"], ["c"])],
        [helper.make_tensor("w", FLOAT, [2000], [0.5] * 2000)],
    )
    file = write(model, tmp_path) / "model.onnx"

    assert read_scalar_names(file) == {"single", "a"}
    found = describe_tensors(open_session(file, 1), file)
    assert [(one.name, one.shape) for one in found.inputs] == [
        ("single", ()),
        ("unknown", None),
        ("rows", (None, None, 3)),
    ]
    assert [one.shape for one in found.outputs] == [(), None, (None, None, 3)]


def test_sequences_are_refused(tmp_path: Path) -> None:
    model = make_model([("x", FLOAT, [2])], [("y", FLOAT, [2])], [("SequenceConstruct", ["x"], ["y"])])
    kind = helper.make_tensor_type_proto(FLOAT, [2])
    model.graph.output[0].CopyFrom(helper.make_value_info("y", helper.make_sequence_type_proto(kind)))
    file = write(model, tmp_path) / "model.onnx"

    with pytest.raises(LoadFailed, match=r"Output y of the model is of the type seq\(tensor\(float\)\)"):
        describe_tensors(open_session(file, 1), file)


def test_maps_are_refused(tmp_path: Path) -> None:
    kind = helper.make_map_type_proto(STRING, helper.make_tensor_type_proto(FLOAT, []))
    node = helper.make_node(
        "DictVectorizer", ["x"], ["y"], domain="ai.onnx.ml", string_vocabulary=["size", "weight"]
    )
    graph = helper.make_graph(
        [node], "graph", [helper.make_value_info("x", kind)],
        [helper.make_tensor_value_info("y", FLOAT, [1, 2])],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets)
    model.ir_version = 8
    file = write(model, tmp_path) / "model.onnx"

    with pytest.raises(
        LoadFailed, match=r"Input x of the model is of the type map\(string,tensor\(float\)\)"
    ):
        describe_tensors(open_session(file, 1), file)


@pytest.mark.parametrize("name", [b"input_1", b"output1", b"rows__1"])
def test_names_that_are_no_text(name: bytes, tmp_path: Path) -> None:
    model = make_model(
        [("input_1", FLOAT, ["rows__1"])],
        [("output1", FLOAT, ["rows__1"])],
        [("Identity", ["input_1"], ["output1"])],
    )
    file = tmp_path / "model.onnx"
    file.write_bytes(model.SerializeToString().replace(name, name[:-1] + b"\xff"))

    with pytest.raises(LoadFailed, match="has a name that is no text in UTF-8"):
        describe_tensors(open_session(file, 1), file)
