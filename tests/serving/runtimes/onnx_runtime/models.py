"""ONNX models made for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

FLOAT, DOUBLE, HALF, BFLOAT16 = (
    TensorProto.FLOAT,
    TensorProto.DOUBLE,
    TensorProto.FLOAT16,
    TensorProto.BFLOAT16,
)
INT64, STRING, BOOL = TensorProto.INT64, TensorProto.STRING, TensorProto.BOOL

ENDLESS = 12345.0

Declared = tuple[str, int, Sequence[int | str | None] | None]
Node = tuple[str, list[str], list[str]]


def make_model(
    inputs: Sequence[Declared],
    outputs: Sequence[Declared],
    nodes: Sequence[Node],
    weights: Sequence[Any] = (),
    *,
    opset: int = 17,
    domain: str = "",
    **attributes: Any,
) -> onnx.ModelProto:
    """A graph of nodes (operator, inputs, outputs); `attributes` are those of the first one."""
    made = [
        helper.make_node(op, taken, given, domain=domain, **(attributes if place == 0 else {}))
        for place, (op, taken, given) in enumerate(nodes)
    ]
    graph = helper.make_graph(
        made,
        "graph",
        [helper.make_tensor_value_info(*one) for one in inputs],
        [helper.make_tensor_value_info(*one) for one in outputs],
        list(weights),
    )
    opsets = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets)
    model.ir_version = 8
    return model


def make_identity(kind: int, shape: Sequence[int | str | None] | None = ("rows", 2)) -> onnx.ModelProto:
    """A model that answers what it is given."""
    return make_model([("x", kind, shape)], [("y", kind, shape)], [("Identity", ["x"], ["y"])])


def make_endless() -> onnx.ModelProto:
    """A model that answers what it is given, but loops without end when a row is `ENDLESS`."""
    row = ("rows", 1)
    body = helper.make_graph(
        [helper.make_node("Identity", ["again"], ["more"]), helper.make_node("Identity", ["old"], ["new"])],
        "body",
        [
            helper.make_tensor_value_info(name, kind, shape)
            for name, kind, shape in (("step", INT64, ()), ("again", BOOL, ()), ("old", FLOAT, row))
        ],
        [
            helper.make_tensor_value_info(name, kind, shape)
            for name, kind, shape in (("more", BOOL, ()), ("new", FLOAT, row))
        ],
    )
    graph = helper.make_graph(
        [
            helper.make_node("Equal", ["x", "endless"], ["equal"]),
            helper.make_node("Cast", ["equal"], ["equals"], to=INT64),
            helper.make_node("ReduceMax", ["equals"], ["largest"], keepdims=0),
            helper.make_node("Cast", ["largest"], ["is_endless"], to=BOOL),
            helper.make_node("Loop", ["", "is_endless", "x"], ["y"], body=body),
        ],
        "graph",
        [helper.make_tensor_value_info("x", FLOAT, row)],
        [helper.make_tensor_value_info("y", FLOAT, row)],
        [helper.make_tensor("endless", FLOAT, (), [ENDLESS])],
    )
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model


def make_network() -> onnx.ModelProto:
    """A small neural network: four numbers to the scores of three classes."""
    import numpy as np

    rng = np.random.default_rng(3)
    sizes = {"w1": (4, 8), "b1": (8,), "w2": (8, 3), "b2": (3,)}
    weights = [
        onnx.numpy_helper.from_array(rng.normal(size=size).astype(np.float32), name)
        for name, size in sizes.items()
    ]
    nodes: list[Node] = [
        ("Gemm", ["x", "w1", "b1"], ["hidden"]),
        ("Relu", ["hidden"], ["active"]),
        ("Gemm", ["active", "w2", "b2"], ["logits"]),
        ("Softmax", ["logits"], ["scores"]),
    ]
    return make_model([("x", FLOAT, ["rows", 4])], [("scores", FLOAT, ["rows", 3])], nodes, weights)


def write(model: onnx.ModelProto, folder: Path) -> Path:
    """Write it as `model.onnx`."""
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return folder
