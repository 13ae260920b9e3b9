"""A signature of named tensors: its inputs and outputs, and how instances become tensors and tensors rows."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving import model_schema
from serving.errors import InvalidInputs, InvalidOutputs
from serving.runtimes import ColumnsFormat, ColumnSpec
from serving.runtimes.datatypes import datatype_of

Arrays = dict[str, NDArray[Any]]
Shape = tuple[int | None, ...]

# The protocols that know of no rows.
_TENSOR_PROTOCOLS = (
    'in columns ("inputs") by TensorFlow Serving\'s REST API (/v1/models/...:predict), by the Open Inference '
    "Protocol (/v2/models/.../infer), or over gRPC"
)

# Numbers that an instance may have for one to be made up: files can declare inputs beyond all memory.
_MOST_SYNTHETIC = 1 << 27


@dataclass(frozen=True, slots=True)
class SignatureTensor:
    """An input or output of a signature. `shape` includes the batch; None: the rank is unknown.

    The shape of an input is `enforced` where the graph itself has it, for a placeholder.
    """

    alias: str
    name: str
    dtype: np.dtype[Any]
    shape: Shape | None
    dense: bool
    enforced: bool = True

    @property
    def is_scalar(self) -> bool:
        """Whether the tensor is one value without a batch dimension."""
        return self.shape == ()

    @property
    def fixed_rows(self) -> int | None:
        """The number of rows, where it is fixed."""
        return self.shape[0] if self.shape else None

    @property
    def row_shape(self) -> Shape | None:
        """The shape of one instance."""
        return None if self.shape is None else self.shape[1:]

    @property
    def has_open_rows(self) -> bool:
        """Whether the first dimension is there and left open."""
        return bool(self.shape) and self.fixed_rows is None

    def accepts_batch_shape(self, shape: tuple[int, ...]) -> bool:
        """Whether instances stacked to this shape fit; the number of rows is not looked at."""
        if not shape or self.shape is None or not (self.enforced or self.is_scalar):
            return bool(shape)
        row_shape = self.shape[1:]
        return shape[1:] == row_shape or (len(shape) == len(self.shape) and _fits_shape(row_shape, shape[1:]))

    def accepts_tensor(self, array: NDArray[Any]) -> bool:
        """Whether an array can be this tensor, as it is."""
        return array.dtype == self.dtype and (not self.enforced or self.matches_shape(array.shape))

    def matches_shape(self, shape: tuple[int, ...]) -> bool:
        """Whether a shape is as declared."""
        return self.shape is None or (len(shape) == len(self.shape) and _fits_shape(self.shape, shape))


class TensorSignature(ABC):
    """One way to call a graph; a subclass computes it.

    An input without a batch dimension holds for the whole request. Its column has one value per instance
    like every other; they must all be equal, and that one value is fed.

    `title` is what error messages call it. `input_problem` and `output_problem` say why instances cannot
    express the inputs, or JSON the outputs. `fixed_rows` is how many instances a request must have, None
    where any number will do.
    """

    def __init__(
        self,
        title: str,
        inputs: tuple[SignatureTensor, ...],
        outputs: tuple[SignatureTensor, ...],
        *,
        method: str = model_schema.PREDICT,
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.fixed_rows = next((i.fixed_rows for i in inputs if i.fixed_rows is not None), None)
        self.independent_rows = all(tensor.has_open_rows for tensor in (*inputs, *outputs))
        columns = tuple(ColumnSpec(i.alias, i.dtype, i.row_shape, i.enforced) for i in inputs)
        self.input_format = ColumnsFormat(columns, self.fixed_rows, self.independent_rows)
        self.input_problem = _input_problem_message(title, inputs)
        self.output_problem = _output_problem_message(title, outputs)
        self.schema = model_schema.ModelSignature(_to_tensor_specs(inputs), _to_tensor_specs(outputs), method)
        self._title = title
        self._promises_rows = all(tensor.has_open_rows for tensor in outputs)
        self.are_shapes_enforced = all(i.enforced for i in inputs)
        self._aliases = {i.alias for i in inputs}

    @abstractmethod
    def compute_outputs(self, values: list[Any]) -> Iterable[tuple[str, Any, np.dtype[Any]]]:
        """Alias, value and dtype of each output, for a value of each distinct input in their order."""

    def predict(self, instances: Arrays) -> Arrays:
        """The outputs by alias, one row per instance."""
        count, values = self._arrange_inputs(instances)
        computed = list(self.compute_outputs(values))
        answer = {alias: _to_rows(value, dtype) for alias, value, dtype in computed}
        if any(len(column) != count for column in answer.values()):
            shapes = ", ".join(f"{alias} {list(np.shape(value))}" for alias, value, _ in computed)
            if self._promises_rows:
                raise InvalidOutputs(_row_count_message(shapes, count))
            raise InvalidInputs(_no_rows_message(self._title, shapes, count))
        return answer

    def predict_tensors(self, tensors: Mapping[str, NDArray[Any]]) -> Arrays:
        """The outputs by alias, as the graph gives them, for inputs as they are: of rows it knows nothing."""
        if self.inputs and self.input_problem:
            raise InvalidInputs(self.input_problem)
        self._require_aliases(tensors)
        for spec in self.inputs:
            if not spec.accepts_tensor(tensors[spec.alias]):
                raise InvalidInputs(_tensor_mismatch_message(spec, tensors[spec.alias]))
        values = {spec.name: tensors[spec.alias] for spec in self.inputs}
        computed = self.compute_outputs(list(values.values()))
        return {alias: np.asarray(value, dtype) for alias, value, dtype in computed}

    def make_synthetic_rows(self, count: int) -> Arrays | None:
        """Made-up instances; None when no dense array can be guessed."""
        if not self.inputs or any(i.shape is None or not i.dense for i in self.inputs):
            return None
        if any(math.prod(size or 1 for size in i.shape or ()) > _MOST_SYNTHETIC for i in self.inputs):
            return None
        rows = self.fixed_rows or count
        return {i.alias: _make_synthetic_column(i, rows, seed) for seed, i in enumerate(self.inputs)}

    def _require_aliases(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        if tensors.keys() != self._aliases:
            raise InvalidInputs(f"Expected the inputs {sorted(self._aliases)}, got {sorted(tensors)}.")

    def _arrange_inputs(self, instances: Arrays) -> tuple[int, list[Any]]:
        """The number of instances, and the arrays in the order they are fed."""
        if self.input_problem:
            raise InvalidInputs(self.input_problem)
        self._require_aliases(instances)
        for spec in self.inputs:
            array = instances[spec.alias]
            if array.dtype != spec.dtype or not spec.accepts_batch_shape(array.shape):
                raise InvalidInputs(_instance_mismatch_message(spec, array))
        count = self._count_instances(instances)
        values = {
            spec.name: _extract_scalar(spec, instances[spec.alias])
            if spec.is_scalar
            else instances[spec.alias]
            for spec in self.inputs
        }
        return count, list(values.values())

    def _count_instances(self, instances: Arrays) -> int:
        counts = {len(array) for array in instances.values()}
        count = counts.pop()
        if counts:
            lengths = ", ".join(f"{alias} has {len(array)}" for alias, array in instances.items())
            raise InvalidInputs(f"The inputs do not have the same number of rows: {lengths}.")
        if count == 0:
            raise InvalidInputs("There are no instances.")
        if self.are_shapes_enforced and self.fixed_rows not in (None, count):
            raise InvalidInputs(
                f"{self._title} takes exactly {self.fixed_rows} instance(s) in a request "
                f"(its batch dimension is fixed); got {count}."
            )
        return count


def _to_tensor_specs(tensors: Iterable[SignatureTensor]) -> tuple[model_schema.TensorSpec, ...]:
    return tuple(
        model_schema.TensorSpec(
            one.alias,
            datatype_of(one.dtype),
            None if one.shape is None else tuple(-1 if size is None else size for size in one.shape),
            one.name,
            enforced=one.enforced,
        )
        for one in tensors
    )


# ---- words for errors


def _input_problem_message(title: str, inputs: Iterable[SignatureTensor]) -> str:
    if not inputs:
        return (
            f"{title} has no inputs, so it cannot be given instances. Ask it for whole tensors, "
            f"with no inputs: {_TENSOR_PROTOCOLS}."
        )
    if sparse := [tensor.alias for tensor in inputs if not tensor.dense]:
        return (
            f"{title} takes sparse or ragged tensors as {', '.join(sparse)}. "
            "Export the model with a signature of dense tensors."
        )
    return ""


def _output_problem_message(title: str, outputs: Iterable[SignatureTensor]) -> str:
    if sparse := [tensor.alias for tensor in outputs if not tensor.dense]:
        return (
            f"{title} answers sparse or ragged tensors as {', '.join(sparse)}. "
            "Export the model with a signature that makes them dense."
        )
    return ""


def _instance_mismatch_message(spec: SignatureTensor, array: NDArray[Any]) -> str:
    sizes = "any" if spec.row_shape is None else [size or "any" for size in spec.row_shape]
    return (
        f"Input {spec.alias} takes {_type_name(spec.dtype)} instances of shape {sizes}; "
        f"got {_type_name(array.dtype)} of shape {list(array.shape[1:])}."
    )


def _tensor_mismatch_message(spec: SignatureTensor, array: NDArray[Any]) -> str:
    sizes = "any" if spec.shape is None else ["any" if size is None else size for size in spec.shape]
    return (
        f"Input {spec.alias} takes a {_type_name(spec.dtype)} tensor of shape {sizes}; "
        f"got {_type_name(array.dtype)} of shape {list(array.shape)}."
    )


def _type_name(dtype: np.dtype[Any]) -> str:
    return "string" if dtype.kind == "O" else dtype.name


def _row_count_message(shapes: str, count: int) -> str:
    return (
        f"Every output must have one row per instance. There were {count} instance(s); "
        f"the outputs have the shapes: {shapes}."
    )


def _no_rows_message(title: str, shapes: str, count: int) -> str:
    return (
        f"{title} does not answer a row for each instance: for {count} instance(s) its outputs "
        f"have the shapes {shapes}. Ask it for whole tensors instead: {_TENSOR_PROTOCOLS}."
    )


# ---- arrays


def _fits_shape(wanted: Shape, shape: tuple[int, ...]) -> bool:
    """Whether a shape of as many dimensions is one of these."""
    return all(want in (None, size) for want, size in zip(wanted, shape, strict=True))


def _extract_scalar(spec: SignatureTensor, column: NDArray[Any]) -> NDArray[Any]:
    """The value of an input without a batch dimension."""
    if not (column[1:] == column[:-1]).all():
        raise InvalidInputs(
            f"Input {spec.alias} is one value for the whole request: it must be the same in every instance."
        )
    return column[:1].reshape(())


def _to_rows(value: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """An output as an array with rows: what has no dimension becomes one element."""
    if isinstance(value, np.ndarray) and value.ndim:
        return value
    column = np.empty(1, dtype)
    column[0] = value  # np.full would cut the zero bytes off the end of a string
    return column


def _make_synthetic_column(spec: SignatureTensor, rows: int, seed: int) -> NDArray[Any]:
    shape = (rows, *(size or 1 for size in spec.row_shape or ()))
    if spec.is_scalar:
        return np.full(shape, _make_random_values(spec.dtype, (), seed), spec.dtype)
    return _make_random_values(spec.dtype, shape, seed)


def _make_random_values(dtype: np.dtype[Any], shape: tuple[int, ...], seed: int) -> NDArray[Any]:
    random = np.random.default_rng(seed)
    if dtype.kind == "O":
        return np.full(shape, b"", object)
    if dtype.kind == "b":
        return np.asarray(random.integers(0, 2, shape), dtype)
    if dtype.kind in "iu":
        return np.asarray(random.integers(0, 3, shape), dtype)
    return np.asarray(random.standard_normal(shape)).astype(dtype)
