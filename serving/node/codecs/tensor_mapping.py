"""Converts between tensors by name, as in the protocols, and the inputs and predictions of a model.

Texts are object arrays of bytes. Numbers are only widened, without loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.errors import InvalidInputs, InvalidOutputs
from serving.model_schema import ModelSchema, ModelSignature, TensorSpec
from serving.node.codecs import ServedModel
from serving.runtimes import ArrayFormat
from serving.runtimes.datatypes import BYTES, datatype_of, dtype_of
from serving.runtimes.input_conversion import to_regular_array
from serving.runtimes.instance_batch import Batch, WholeTensors
from serving.runtimes.json_codec import encode_lines
from serving.runtimes.prediction_methods import SIGNATURE_NAME
from serving.runtimes.schema_inference import COLUMN_PREFIX, INSTANCES, PREDICTIONS

Arrays = Mapping[str, NDArray[Any]]
Parameters = dict[str, Any]

# Limits of a request's inputs, outputs and parameters: more would keep a node busy for seconds.
MAX_INPUTS = 1 << 14
_MAX_PARAMETERS = 4 * MAX_INPUTS
# The largest product of the non-zero sizes of an empty tensor: nested empty lists take memory too, and a few
# bytes can declare any number of them.
_MAX_EMPTY_SIZE = 1 << 20

_INT64, _UINT64, _FLOAT64 = np.dtype(np.int64), np.dtype(np.uint64), np.dtype(np.float64)
_MAX_INT64 = np.iinfo(np.int64).max
# Names that a message lists.
_MAX_LISTED_NAMES = 20


def tensors_to_batch(model: ServedModel, tensors: Arrays, signature: str = "") -> tuple[Batch, Parameters]:
    """The tensors of a request as the runtime takes them, with the parameter that names the signature.

    - Named tensors: as they are; named columns, which can share a call, where rows are independent.
    - Numbers in rows: one tensor [rows, features] of any name, or one for each feature by its name.
    - Other rows: the rows of one tensor of any name, or objects made of several.

    Raises InvalidInputs that names the input, what was expected and what came.
    """
    for name, tensor in tensors.items():
        if not tensor.size and math.prod(size or 1 for size in tensor.shape) > _MAX_EMPTY_SIZE:
            raise InvalidInputs(
                f"Input {name} has the shape {_format_shape(tensor.shape)}: no elements, and its other sizes "
                "are too large."
            )
    if model.runtime.framework.takes_named_tensors:
        return _fit_to_signature(model, tensors, signature)
    if model.runtime.framework.runs_user_code:  # to which all that a request says is handed on
        parameters: Parameters = {SIGNATURE_NAME: signature} if signature else {}
    else:
        parameters = {}
    numeric = isinstance(form := model.runtime.input_format(parameters), ArrayFormat)
    if not tensors:
        raise InvalidInputs("The request has no inputs.")
    columns = _find_columns(model.schema)
    together = len(tensors) == 1 and not tensors.keys() & columns.keys()
    if not together:
        rows = (
            _stack_columns(tensors, columns) if numeric and columns else _rows_from_columns(tensors, columns)
        )
        return rows, parameters
    ((name, tensor),) = tensors.items()
    if isinstance(form, ArrayFormat):
        return _numeric_rows(name, tensor, form.width), parameters
    return _rows_from_tensor(name, tensor, model.schema, columns), parameters


def batch_to_tensors(predictions: Batch) -> dict[str, NDArray[Any]]:
    """The tensors of an answer by name.

    What has no names is called "predictions". Of these, numbers and texts that are regular stay such, and
    anything else is BYTES: the JSON of each prediction. Raises InvalidOutputs for what JSON cannot carry.
    """
    match predictions:
        case WholeTensors():
            return dict(predictions.values)
        case dict():
            return {name: _normalize_output(values) for name, values in predictions.items()}
        case _:
            return {PREDICTIONS: _array_from_predictions(predictions)}


def check_request_counts(inputs: Sized, outputs: Sized, parameters: Iterable[Sized | None] = ()) -> None:
    """Raise InvalidInputs for a request that names more of them than is allowed.

    `parameters` are its own, and those of each input and output; they are looked at after these were counted.
    """
    for what, count in (("inputs", len(inputs)), ("outputs", len(outputs))):
        if count > MAX_INPUTS:
            raise InvalidInputs(f"The request names {count} {what}; it can name {MAX_INPUTS}.")
    count = sum(len(some) for some in parameters if some)
    if count > _MAX_PARAMETERS:
        raise InvalidInputs(f"The request names {count} parameters; it can name {_MAX_PARAMETERS}.")


def find_signature(model: ServedModel, name: str = "") -> ModelSignature:
    """A signature by its name, "" for the default one. Raises InvalidInputs; why, for one left out."""
    schema = model.schema
    found = schema.signatures.get(name or schema.default)
    if found is not None:
        return found
    if name and model.runtime.framework.takes_named_tensors:
        model.runtime.input_format({SIGNATURE_NAME: name})  # which knows why a signature is left out
    known = f"The model has: {', '.join(schema.signatures)}."
    if name:
        raise InvalidInputs(f"No signature found for signature key {name}. {known}")
    raise InvalidInputs(f"The model has no default signature: say which one is meant. {known}")


# ---- graphs


def _fit_to_signature(model: ServedModel, tensors: Arrays, name: str) -> tuple[Batch, Parameters]:
    signature = find_signature(model, name)
    wanted = {tensor.name: tensor for tensor in signature.inputs}
    if tensors.keys() != wanted.keys():
        raise InvalidInputs(_wrong_names_message(wanted, tensors))
    fitted = {name: _fit_tensor(tensor, tensors[name]) for name, tensor in wanted.items()}
    # The default one has no name, so that whoever names it can share a call with those who do not.
    parameters = {SIGNATURE_NAME: name} if name and name != model.schema.default else {}
    return (fitted if _have_independent_rows(signature, fitted) else WholeTensors(fitted)), parameters


def _have_independent_rows(signature: ModelSignature, tensors: Arrays) -> bool:
    """Whether the tensors are rows that are computed each by itself."""
    if not all(tensor.shape and tensor.shape[0] < 0 for tensor in (*signature.inputs, *signature.outputs)):
        return False
    if not all(_shape_fits(one.shape, tensors[one.name].shape) for one in signature.inputs):
        return False
    counts = {len(tensor) for tensor in tensors.values()}
    return len(counts) == 1 and counts != {0}


def _fit_tensor(tensor: TensorSpec, array: NDArray[Any]) -> NDArray[Any]:
    """An input as it is declared. Raises InvalidInputs."""
    dtype = dtype_of(tensor.datatype)
    fits = not tensor.enforced or _shape_fits(tensor.shape, array.shape)
    if dtype is None or not _is_widening(array.dtype, dtype) or not fits:
        raise InvalidInputs(_misfit_message(tensor.name, tensor.datatype, _format_shape(tensor.shape), array))
    return _align_memory(array.astype(dtype, copy=False))


def _is_widening(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether every number of one type is one of another of its kind: integers stay integers."""
    if given == wanted:
        return True
    return any({given.kind, wanted.kind} <= kinds for kinds in _KINDS) and np.can_cast(given, wanted)


_KINDS = ({"i", "u"}, {"f", "V"})


def _shape_fits(wanted: Sequence[int] | None, given: Sequence[int]) -> bool:
    if wanted is None:
        return True
    return len(wanted) == len(given) and all(
        want in (-1, got) for want, got in zip(wanted, given, strict=True)
    )


# ---- rows


def _find_columns(schema: ModelSchema) -> dict[str, TensorSpec]:
    """The inputs by name, if they are columns of which a row has one value each."""
    if not schema.strict:
        return {}
    inputs = schema.signatures[schema.default].inputs
    return {} if inputs[0].name == INSTANCES else {tensor.name: tensor for tensor in inputs}


def _numeric_rows(name: str, tensor: NDArray[Any], width: int | None) -> NDArray[Any]:
    """Rows of numbers in the types that JSON's would have, without a copy where they have them."""
    shape = (-1, width or -1)
    if not _shape_fits(shape, tensor.shape):
        problem = _misfit_message(name, "numbers", _format_shape(shape), tensor)
        if tensor.ndim == 1 and width in (None, len(tensor)):
            problem += f" A single row has the shape [1, {len(tensor)}]."
        raise InvalidInputs(problem)
    _count_rows(name, tensor)
    return _cast_to_json_types(name, tensor)


def _cast_to_json_types(name: str, tensor: NDArray[Any]) -> NDArray[Any]:
    """Integers as int64, all other numbers as float64."""
    if tensor.dtype.kind not in "biufV":
        raise InvalidInputs(_misfit_message(name, "numbers", _format_shape((-1, *tensor.shape[1:])), tensor))
    if tensor.dtype == _UINT64 and int(tensor.max()) > _MAX_INT64:
        raise InvalidInputs(f"Input {name} has a number above {_MAX_INT64}; the model takes none such.")
    array = tensor.astype(_INT64 if tensor.dtype.kind in "biu" else _FLOAT64, copy=False)
    # Estimators may work in place (copy=False), as they can with what JSON brings.
    return array if array.flags.behaved else array.copy()


def _rows_from_tensor(
    name: str, tensor: NDArray[Any], schema: ModelSchema, columns: Mapping[str, TensorSpec]
) -> list[Any]:
    """Rows as plain values, just as JSON has them."""
    _count_rows(name, tensor)
    if columns:
        kinds = {wanted.datatype == BYTES for wanted in columns.values()}
        if kinds != {tensor.dtype.kind == "O"} or not _shape_fits((-1, len(columns)), tensor.shape):
            raise InvalidInputs(_wrong_names_message(columns, (name,)))
    elif schema.strict:
        (wanted,) = schema.signatures[schema.default].inputs
        if wanted.shape == (-1,) and tensor.shape[1:] == (1,):
            tensor = tensor[:, 0]
        anything = wanted.datatype == BYTES and wanted.shape is None
        fits = (tensor.dtype.kind == "O") == (wanted.datatype == BYTES) and _shape_fits(
            wanted.shape, tensor.shape
        )
        if not anything and not fits:
            raise InvalidInputs(_misfit_message(name, wanted.datatype, _format_shape(wanted.shape), tensor))
    return _to_plain_values(tensor)


def _rows_from_columns(tensors: Arrays, columns: Mapping[str, TensorSpec]) -> list[Any]:
    """Rows made of one tensor for each of their values: objects, or lists where columns have no names."""
    values = [_to_plain_values(tensor) for tensor in _align_columns(tensors, columns)]
    rows = zip(*values, strict=True)
    if columns and all(name == f"{COLUMN_PREFIX}{place}" for place, name in enumerate(columns)):
        return [list(row) for row in rows]
    return [dict(zip(columns or tensors, row, strict=True)) for row in rows]


def _stack_columns(tensors: Arrays, columns: Mapping[str, TensorSpec]) -> NDArray[Any]:
    """Rows of numbers made of one tensor for each of them."""
    return np.column_stack(
        [
            _cast_to_json_types(name, tensor)
            for name, tensor in zip(columns, _align_columns(tensors, columns), strict=True)
        ]
    )


def _align_columns(tensors: Arrays, columns: Mapping[str, TensorSpec]) -> list[NDArray[Any]]:
    """The tensors in the order of the columns, if there are any, all with as many rows."""
    if columns and tensors.keys() != columns.keys():
        raise InvalidInputs(_wrong_names_message(columns, tensors))
    counts = {name: _count_rows(name, tensor) for name, tensor in tensors.items()}
    first, count = next(iter(counts.items()))
    other = next((name for name in counts if counts[name] != count), None)
    if other is not None:
        raise InvalidInputs(
            "The inputs do not have the same number of rows: "
            f"{first} has {count}, {other} has {counts[other]}."
        )
    if not columns:
        return list(tensors.values())
    return [_flatten_column(wanted, tensors[name]) for name, wanted in columns.items()]


def _flatten_column(wanted: TensorSpec, tensor: NDArray[Any]) -> NDArray[Any]:
    """One value for each row."""
    text = wanted.datatype == BYTES
    if (tensor.dtype.kind == "O") != text or not (tensor.ndim == 1 or tensor.shape[1:] == (1,)):
        raise InvalidInputs(
            _misfit_message(wanted.name, wanted.datatype if text else "numbers", "[-1] or [-1, 1]", tensor)
        )
    return tensor.reshape(-1)


def _to_plain_values(tensor: NDArray[Any]) -> list[Any]:
    """A tensor as lists. Bytes become text where they are UTF-8."""
    if tensor.dtype.kind == "V":
        tensor = tensor.astype(_FLOAT64)
    if tensor.dtype.kind == "O":
        texts = np.empty(tensor.shape, object)
        texts.reshape(-1)[:] = [_decode_text(value) for value in tensor.reshape(-1).tolist()]
        tensor = texts
    values: list[Any] = tensor.tolist()
    return values


def _decode_text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _count_rows(name: str, tensor: NDArray[Any]) -> int:
    """The number of rows. Raises InvalidInputs if there are none."""
    if not tensor.ndim:
        raise InvalidInputs(f"Input {name} is a single value; its first dimension is to be that of the rows.")
    if not len(tensor):
        raise InvalidInputs(f"Input {name} has no rows: there is nothing to predict.")
    return len(tensor)


def _align_memory(array: NDArray[Any]) -> NDArray[Any]:
    """The array where libraries written in C expect it: a tensor in a body may begin anywhere."""
    return array if array.flags.aligned else array.copy()


# ---- answers


def _normalize_output(values: list[Any] | NDArray[Any]) -> NDArray[Any]:
    """A named output: as it is, but for what a method of an estimator gave, which may be texts or lists."""
    if isinstance(values, list) or values.dtype.kind == "U":
        return _array_from_predictions(values)
    is_text = values.dtype.kind == "O" and values.size and not isinstance(values.flat[0], bytes)
    return _array_from_predictions(values) if is_text else values


def _array_from_predictions(predictions: list[Any] | NDArray[Any]) -> NDArray[Any]:
    array = predictions if isinstance(predictions, np.ndarray) else to_regular_array(predictions)
    if array is not None:
        if array.dtype.kind == "S":  # numpy cuts the zero bytes off the ends of its own texts
            array = np.array(predictions, object)
        if array.dtype.kind in "biufV":
            return array.astype(_FLOAT64) if array.dtype.kind == "f" and array.itemsize > 8 else array
        values = array.reshape(-1).tolist()
        if array.dtype.kind in "OU" and all(isinstance(value, str | bytes) for value in values):
            return _make_bytes_array(values, array.shape)
    lines = encode_lines(predictions).split(b"\n")
    return _make_bytes_array(lines[:-1], (len(lines) - 1,))


def _make_bytes_array(values: Iterable[str | bytes], shape: tuple[int, ...]) -> NDArray[Any]:
    array = np.empty(shape, object)
    try:
        array.reshape(-1)[:] = [value if isinstance(value, bytes) else value.encode() for value in values]
    except UnicodeEncodeError as error:
        raise InvalidOutputs(f"A prediction is a text that UTF-8 cannot carry: {error}.") from error
    return array


# ---- words for errors


def _misfit_message(name: str, kind: str, shape: str, given: NDArray[Any]) -> str:
    return (
        f"Input {name} takes {kind} of shape {shape}; "
        f"got {datatype_of(given.dtype)} of shape {_format_shape(given.shape)}."
    )


def _wrong_names_message(wanted: Iterable[str], given: Iterable[str]) -> str:
    missing = [name for name in wanted if name not in given]
    if missing:
        problem = f"Input {missing[0]} is missing"
    else:
        problem = f"There is no input {next(name for name in given if name not in wanted)}"
    return f"{problem}: the model takes {_list_names(wanted)}; got {_list_names(given)}."


def _list_names(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _MAX_LISTED_NAMES} more" if len(listed) > _MAX_LISTED_NAMES else ""
    return ", ".join(listed[:_MAX_LISTED_NAMES]) + more or "none"


def _format_shape(shape: Sequence[int] | None) -> str:
    return "any" if shape is None else str(list(shape))
