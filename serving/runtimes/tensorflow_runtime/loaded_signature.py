"""A signature of a loaded SavedModel as a callable on arrays, with the checks around it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.core.protobuf import config_pb2

from serving import model_schema
from serving.errors import InvalidInputs, InvalidOutputs, ModelFailed
from serving.runtimes import ColumnsFormat, ColumnSpec
from serving.runtimes.datatypes import datatype_of

Arrays = dict[str, NDArray[Any]]
Shape = tuple[int | None, ...]

_CALLER_THREAD = -1
# The protocols that know of no rows.
_TENSOR_PROTOCOLS = (
    'in columns ("inputs") by TensorFlow Serving\'s REST API (/v1/models/...:predict), by the Open Inference '
    "Protocol (/v2/models/.../infer), or over gRPC"
)


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

    def accepts_shape(self, shape: tuple[int, ...]) -> bool:
        """Whether instances stacked to this shape fit; the number of rows is not looked at."""
        if not shape or self.shape is None or not (self.enforced or self.is_scalar):
            return bool(shape)
        row_shape = self.shape[1:]
        return shape[1:] == row_shape or (len(shape) == len(self.shape) and _fits_shape(row_shape, shape[1:]))

    def accepts_tensor(self, array: NDArray[Any]) -> bool:
        """Whether an array can be this tensor, as it is."""
        return array.dtype == self.dtype and (not self.enforced or self.has_shape(array.shape))

    def has_shape(self, shape: tuple[int, ...]) -> bool:
        """Whether a shape is as declared."""
        return self.shape is None or (len(shape) == len(self.shape) and _fits_shape(self.shape, shape))


class FeedNames(NamedTuple):
    """The names by which an input is fed: as it was declared, or in another shape."""

    declared: str
    other: str


class LoadedSignature:
    """One signature of a loaded model.

    An input without a batch dimension holds for the whole request. Its column has one value per instance
    like every other; they must all be equal, and that one value is fed.

    `feeds` are the names of its inputs in the session, `fetches` those of outputs that have others there.
    `input_problem` and `output_problem` say why instances cannot express the inputs, or JSON the outputs.
    `fixed_rows` is how many instances a request must have, None where any number will do.
    """

    def __init__(
        self,
        name: str,
        inputs: tuple[SignatureTensor, ...],
        outputs: tuple[SignatureTensor, ...],
        session: Any,
        feeds: Mapping[str, FeedNames],
        *,
        fetches: Mapping[str, str],
        method: str = model_schema.PREDICT,
    ) -> None:
        self.name = name
        self.inputs = inputs
        self.outputs = outputs
        self.fixed_rows = next((i.fixed_rows for i in inputs if i.fixed_rows is not None), None)
        self.independent_rows = all(tensor.has_open_rows for tensor in (*inputs, *outputs))
        self._promises_rows = all(tensor.has_open_rows for tensor in outputs)
        columns = tuple(ColumnSpec(i.alias, i.dtype, i.row_shape, i.enforced) for i in inputs)
        self.input_format = ColumnsFormat(columns, self.fixed_rows, self.independent_rows)
        self.input_problem = _input_problem_message(name, inputs)
        self.output_problem = _output_problem_message(name, outputs)
        self.schema = model_schema.ModelSignature(
            _describe_tensors(inputs), _describe_tensors(outputs), method
        )
        self._session = session
        self._are_shapes_enforced = all(i.enforced for i in inputs)
        self._feeds = feeds
        self._fetches = fetches
        self._aliases = {i.alias for i in inputs}
        # An output may be an input passed on, and two aliases may share a tensor: each tensor is fed or
        # fetched once. `_output_indexes` says where in [*fed, *fetched] an output's value is.
        fed = list(dict.fromkeys(i.name for i in inputs))
        self._fetched = [name for name in dict.fromkeys(o.name for o in outputs) if name not in fed]
        self._fed = fed
        names = fed + self._fetched
        self._output_indexes = tuple((o.alias, names.index(o.name), o.dtype) for o in outputs)

    def predict(self, instances: Arrays) -> Arrays:
        """The outputs by alias, one row per instance."""
        count, values = self._arrange_inputs(instances)
        computed = list(self._compute_outputs(values))
        answer = {alias: _to_rows(value, dtype) for alias, value, dtype in computed}
        if any(len(column) != count for column in answer.values()):
            shapes = ", ".join(f"{alias} {list(np.shape(value))}" for alias, value, _ in computed)
            if self._promises_rows:
                raise InvalidOutputs(_row_count_message(shapes, count))
            raise InvalidInputs(_no_rows_message(self.name, shapes, count))
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
        computed = self._compute_outputs(list(values.values()))
        return {alias: np.asarray(value, dtype) for alias, value, dtype in computed}

    @property
    def takes_text(self) -> bool:
        """Whether an instance is one text, maybe a serialised `tf.Example`."""
        return len(self.inputs) == 1 and self.inputs[0].dtype.kind == "O" and self.inputs[0].row_shape == ()

    @property
    def graph_def(self) -> Any:
        """The GraphDef of the model."""
        return self._session.graph.as_graph_def()

    def make_synthetic_rows(self, count: int) -> Arrays | None:
        """Made-up instances; None when no dense array can be guessed."""
        if not self.inputs or any(i.shape is None or not i.dense for i in self.inputs):
            return None
        rows = self.fixed_rows or count
        return {i.alias: _make_synthetic_column(i, rows, seed) for seed, i in enumerate(self.inputs)}

    @cached_property
    def _run_declared(self) -> Callable[..., Sequence[Any]]:
        """The prepared callable, made when the signature is first used (warm-up, as a rule)."""
        return self._make_callable([self._feeds[name].declared for name in self._fed])

    @cached_property
    def _run_undeclared(self) -> Callable[..., Sequence[Any]]:
        """The same for inputs of shapes that were not declared; what they may be is up to the graph."""
        return self._make_callable([self._feeds[name].other for name in self._fed])

    def _make_callable(self, feeds: Iterable[str]) -> Callable[..., Sequence[Any]]:
        if self.output_problem:
            raise InvalidOutputs(self.output_problem)
        if not self._fetched:
            return lambda *_: ()
        fetches = [self._fetches.get(name, name) for name in self._fetched]
        options = config_pb2.CallableOptions(feed=feeds, fetch=fetches)
        options.run_options.inter_op_thread_pool = _CALLER_THREAD
        run: Callable[..., Sequence[Any]] = self._session._make_callable_from_options(options)
        return run

    def _compute_outputs(self, values: list[Any]) -> Iterator[tuple[str, Any, np.dtype[Any]]]:
        """Alias, value and dtype of each output, for what is fed, in that order."""
        try:
            run = (
                self._run_declared
                if self._are_shapes_enforced or self._have_declared_shapes(values)
                else self._run_undeclared
            )
            values = [*values, *run(*values)]
        except tf.errors.OpError as error:
            raise _to_serving_error(error) from error
        return ((alias, values[place], dtype) for alias, place, dtype in self._output_indexes)

    def _have_declared_shapes(self, values: Iterable[Any]) -> bool:
        specs = {spec.name: spec for spec in self.inputs}
        return all(
            specs[name].has_shape(np.shape(value)) for name, value in zip(self._fed, values, strict=True)
        )

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
            if array.dtype != spec.dtype or not spec.accepts_shape(array.shape):
                raise InvalidInputs(_instance_mismatch_message(spec, array))
        count = self._count_instances(instances)
        values = {
            spec.name: _extract_single_value(spec, instances[spec.alias])
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
        if self._are_shapes_enforced and self.fixed_rows not in (None, count):
            raise InvalidInputs(
                f"Signature {self.name} takes exactly {self.fixed_rows} instance(s) in a request "
                f"(its batch dimension is fixed); got {count}."
            )
        return count


def _describe_tensors(tensors: Iterable[SignatureTensor]) -> tuple[model_schema.TensorSpec, ...]:
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


# ---- errors

_PREAMBLE = re.compile(
    r"(?:\d+ root error\(s\) found\.\s*\(0\) [\w ]+: )?(?:\{\{function_node [^}]*\}\}\s*)*"
)
_NOISE = re.compile(r"\s*(?:\[\[\{\{|\n|Original stack trace|Caused by op).*", re.DOTALL)


def summarize_error(error: BaseException, model_dir: Path | None = None) -> str:
    """The first meaningful sentence of a TensorFlow error, without nodes, stacks and our own folders."""
    text = str(error.message if isinstance(error, tf.errors.OpError) else error).strip()
    if model_dir is not None:
        text = text.replace(f"{model_dir}/", "")
    text = _NOISE.sub("", text[_PREAMBLE.match(text).end() :])  # type: ignore[union-attr]  # it matches ""
    return text.rstrip(".")[:500] or type(error).__name__


def _to_serving_error(error: Any) -> InvalidInputs | ModelFailed:
    message = summarize_error(error)
    of_input = isinstance(error, tf.errors.InvalidArgumentError | tf.errors.OutOfRangeError)
    if of_input or message.startswith("Unsupported object type"):
        return InvalidInputs(message)
    return ModelFailed(f"Exception during running the graph: {message}")


def _input_problem_message(signature: str, inputs: Iterable[SignatureTensor]) -> str:
    if not inputs:
        return (
            f"Signature {signature} has no inputs, so it cannot be given instances. Ask it for whole "
            f"tensors, with no inputs: {_TENSOR_PROTOCOLS}."
        )
    if sparse := [tensor.alias for tensor in inputs if not tensor.dense]:
        return (
            f"Signature {signature} takes sparse or ragged tensors as {', '.join(sparse)}. "
            "Export the model with a signature of dense tensors."
        )
    return ""


def _output_problem_message(signature: str, outputs: Iterable[SignatureTensor]) -> str:
    if sparse := [tensor.alias for tensor in outputs if not tensor.dense]:
        return (
            f"Signature {signature} answers sparse or ragged tensors as {', '.join(sparse)}. "
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


def _no_rows_message(signature: str, shapes: str, count: int) -> str:
    return (
        f"Signature {signature} does not answer a row for each instance: for {count} instance(s) its outputs "
        f"have the shapes {shapes}. Ask it for whole tensors instead: {_TENSOR_PROTOCOLS}."
    )


# ---- arrays


def _fits_shape(wanted: Shape, shape: tuple[int, ...]) -> bool:
    """Whether a shape of as many dimensions is one of these."""
    return all(want in (None, size) for want, size in zip(wanted, shape, strict=True))


def _extract_single_value(spec: SignatureTensor, column: NDArray[Any]) -> NDArray[Any]:
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
