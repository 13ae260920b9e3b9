"""The inputs and outputs of an ONNX graph, as far as instances and tensors can express them."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from serving.errors import LoadFailed
from serving.runtimes.tensor_signature import Shape, SignatureTensor

DType = np.dtype[Any]

_DTYPES: dict[str, DType] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(double)": np.dtype(np.float64),
    "tensor(float16)": np.dtype(np.float16),
    "tensor(bool)": np.dtype(np.bool_),
    "tensor(string)": np.dtype(object),
    **{
        f"tensor({sign}int{bits})": np.dtype(f"{sign}int{bits}")
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
}
_EXPRESSIBLE = "dense tensors of float, double, float16, bool, string or integers of 8 to 64 bits"
# What a classifier gives for each row: the score of each label.
LABEL_SCORES = frozenset({"seq(map(int64,tensor(float)))", "seq(map(string,tensor(float)))"})
_SCORES_DTYPE = np.dtype(np.float32)


class GraphTensors(NamedTuple):
    """What a graph takes and gives; `label_scores` are outputs that have a score for each label."""

    inputs: tuple[SignatureTensor, ...]
    outputs: tuple[SignatureTensor, ...]
    label_scores: frozenset[str]


def describe_tensors(session: Any, file: Path) -> GraphTensors:
    """The inputs without a default and all outputs. Raises LoadFailed naming what cannot be served."""
    try:
        return _collect_tensors(session, file)
    except UnicodeDecodeError as error:
        raise LoadFailed(
            f"An input, an output or a dimension of the model has a name that is no text in UTF-8: {error}. "
            "Export the model with other names."
        ) from error


def _collect_tensors(session: Any, file: Path) -> GraphTensors:
    declared = [*session.get_inputs(), *session.get_outputs()]
    scalars = read_scalar_names(file) if any(_has_no_dimensions(one) for one in declared) else frozenset()
    return GraphTensors(
        tuple(_describe_input(one, scalars) for one in session.get_inputs()),
        tuple(_describe_output(one, scalars) for one in session.get_outputs()),
        frozenset(one.name for one in session.get_outputs() if one.type in LABEL_SCORES),
    )


def _has_no_dimensions(declared: Any) -> bool:
    """Whether it is a single value, or of unknown rank: onnxruntime does not tell which."""
    return declared.type in _DTYPES and not declared.shape


def _describe_input(declared: Any, scalars: frozenset[str]) -> SignatureTensor:
    if declared.type not in _DTYPES:
        raise LoadFailed(
            f"Input {declared.name} of the model is of the type {declared.type}, which requests cannot "
            f"express. Export the model with {_EXPRESSIBLE}."
        )
    return _describe_tensor(declared, scalars)


def _describe_output(declared: Any, scalars: frozenset[str]) -> SignatureTensor:
    if declared.type in LABEL_SCORES:
        return SignatureTensor(declared.name, declared.name, _SCORES_DTYPE, (None, None), dense=True)
    if declared.type not in _DTYPES:
        raise LoadFailed(
            f"Output {declared.name} of the model is of the type {declared.type}, which answers cannot "
            f"express. Export the model with {_EXPRESSIBLE}."
        )
    return _describe_tensor(declared, scalars)


def _describe_tensor(declared: Any, scalars: frozenset[str]) -> SignatureTensor:
    shape: Shape | None = tuple(
        size if isinstance(size, int) and size >= 0 else None for size in declared.shape
    )
    if not shape and declared.name not in scalars:
        shape = None
    return SignatureTensor(declared.name, declared.name, _DTYPES[declared.type], shape, dense=True)


# ---- what onnxruntime does not tell: which inputs and outputs are declared as single values

# Numbers of fields in onnx.proto: ModelProto.graph, GraphProto.input and .output, ValueInfoProto.name and
# .type, TypeProto.tensor_type, TypeProto.Tensor.shape, TensorShapeProto.dim.
_GRAPH, _INPUT, _OUTPUT, _NAME, _TYPE, _TENSOR_TYPE, _SHAPE, _DIM = 7, 11, 12, 1, 2, 1, 2, 1


def read_scalar_names(file: Path) -> frozenset[str]:
    """The inputs and outputs with a shape of no dimensions, of a file that has been loaded.

    Weights are skipped and never read.
    """
    with file.open("rb") as stream:
        data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    return frozenset(_find_scalar_names(memoryview(data)))


def _find_scalar_names(model: memoryview) -> Iterator[str]:
    for graph in _iterate_messages(model, _GRAPH):
        for field, value in _iterate_fields(graph):
            if field in (_INPUT, _OUTPUT) and _is_scalar(value):
                yield from (bytes(name).decode() for name in _iterate_messages(value, _NAME))


def _is_scalar(value_info: memoryview) -> bool:
    shapes = [
        shape
        for kind in _iterate_messages(value_info, _TYPE)
        for tensor in _iterate_messages(kind, _TENSOR_TYPE)
        for shape in _iterate_messages(tensor, _SHAPE)
    ]
    return bool(shapes) and not any(True for shape in shapes for _ in _iterate_messages(shape, _DIM))


def _iterate_messages(data: memoryview, wanted: int) -> Iterator[memoryview]:
    return (value for field, value in _iterate_fields(data) if field == wanted)


def _iterate_fields(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The fields of a message that have a length, by number."""
    place = 0
    while place < len(data):
        tag, place = _read_varint(data, place)
        match tag & 7:
            case 0:  # a number
                _, place = _read_varint(data, place)
            case 1:  # a number in 8 bytes
                place += 8
            case 5:  # in 4 bytes
                place += 4
            case _:
                size, place = _read_varint(data, place)
                yield tag >> 3, data[place : place + size]
                place += size


def _read_varint(data: memoryview, place: int) -> tuple[int, int]:
    """A number of variable length, and the place behind it."""
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
