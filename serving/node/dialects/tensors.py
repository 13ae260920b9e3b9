"""Between tensors by name, as other people's protocols have them, and what a model takes and answers.

Texts are arrays of objects, each of them bytes. Numbers become wider where that loses nothing, and never
narrower.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.errors import InvalidInputs, InvalidOutputs
from serving.node.dialects import Model
from serving.runtimes import ArrayFormat
from serving.runtimes.arguments import SIGNATURE_NAME
from serving.runtimes.codec import encode_lines
from serving.runtimes.conversion import to_regular_array
from serving.runtimes.datatypes import BYTES, datatype_of, dtype_of
from serving.runtimes.describing import COLUMN_PREFIX, INSTANCES, PREDICTIONS
from serving.runtimes.instances import Batch, WholeTensors
from serving.schema import ModelSchema, ModelSignature, TensorSpec

Arrays = Mapping[str, NDArray[Any]]
Parameters = dict[str, Any]

# Inputs of a request, and outputs, and the parameters of all: to look at more would keep a node busy for
# seconds.
MANY = 1 << 14
_PARAMETERS = 4 * MANY
# What the sizes of a tensor without elements may come to: lists of nothing take memory too, and there is no
# end to how many of them a few bytes can tell of.
_MOST_OF_NOTHING = 1 << 20

_INT64, _UINT64, _FLOAT64 = np.dtype(np.int64), np.dtype(np.uint64), np.dtype(np.float64)
_MOST_INT64 = np.iinfo(np.int64).max
# Names that a message lists.
_SHOWN = 20


def batch_of(model: Model, tensors: Arrays, signature: str = "") -> tuple[Batch, Parameters]:
    """The tensors of a request as the runtime takes them, with the parameter that names the signature.

    - TensorFlow: as they are; named columns, which can share a call with others, where rows are independent.
    - Numbers in rows: one tensor [rows, features] of any name, or one for each feature by its name.
    - Other rows: the rows of one tensor of any name, or objects made of several.

    Raises InvalidInputs that names the input, what was expected and what came.
    """
    for name, tensor in tensors.items():
        if not tensor.size and math.prod(size or 1 for size in tensor.shape) > _MOST_OF_NOTHING:
            raise InvalidInputs(
                f"Input {name} has the shape {_sizes(tensor.shape)}, which is too large even for nothing."
            )
    if model.runtime.framework == "TENSORFLOW":
        return _of_graph(model, tensors, signature)
    if model.runtime.framework == "CUSTOM":  # to whom all that a request says is handed on
        parameters: Parameters = {SIGNATURE_NAME: signature} if signature else {}
    else:
        parameters = {}
    numeric = isinstance(form := model.runtime.input_format(parameters), ArrayFormat)
    if not tensors:
        raise InvalidInputs("The request has no inputs.")
    columns = _columns(model.schema)
    together = len(tensors) == 1 and not tensors.keys() & columns.keys()
    if not together:
        rows = _stacked(tensors, columns) if numeric and columns else _rows_of(tensors, columns)
        return rows, parameters
    ((name, tensor),) = tensors.items()
    if isinstance(form, ArrayFormat):
        return _numbers(name, tensor, form.width), parameters
    return _rows(name, tensor, model.schema, columns), parameters


def tensors_of(predictions: Batch) -> dict[str, NDArray[Any]]:
    """The tensors of an answer by name.

    What has no names is called "predictions". Of these, numbers and texts that are regular stay such, and
    anything else is BYTES: the JSON of each prediction. Raises InvalidOutputs for what JSON cannot carry.
    """
    match predictions:
        case WholeTensors():
            return dict(predictions.values)
        case dict():
            return {name: _named_output(values) for name, values in predictions.items()}
        case _:
            return {PREDICTIONS: _answer(predictions)}


def limit(inputs: Sized, outputs: Sized, parameters: Iterable[Sized | None] = ()) -> None:
    """Raise InvalidInputs for a request that names more of them than is allowed.

    `parameters` are its own, and those of each input and output; they are looked at after these were counted.
    """
    for what, count in (("inputs", len(inputs)), ("outputs", len(outputs))):
        if count > MANY:
            raise InvalidInputs(f"The request names {count} {what}; it can name {MANY}.")
    count = sum(len(some) for some in parameters if some)
    if count > _PARAMETERS:
        raise InvalidInputs(f"The request names {count} parameters; it can name {_PARAMETERS}.")


def signature_of(model: Model, name: str = "") -> ModelSignature:
    """A signature by its name, "" for the default one. Raises InvalidInputs; why, for one left out."""
    schema = model.schema
    found = schema.signatures.get(name or schema.default)
    if found is not None:
        return found
    if name and model.runtime.framework == "TENSORFLOW":
        model.runtime.input_format({SIGNATURE_NAME: name})  # which knows why a signature is left out
    known = f"The model has: {', '.join(schema.signatures)}."
    if name:
        raise InvalidInputs(f"No signature found for signature key {name}. {known}")
    raise InvalidInputs(f"The model has no default signature: say which one is meant. {known}")


# ---- graphs


def _of_graph(model: Model, tensors: Arrays, name: str) -> tuple[Batch, Parameters]:
    signature = signature_of(model, name)
    wanted = {tensor.name: tensor for tensor in signature.inputs}
    if tensors.keys() != wanted.keys():
        raise InvalidInputs(_wrong_names(wanted, tensors))
    fitted = {name: _fitted(tensor, tensors[name]) for name, tensor in wanted.items()}
    # The default one has no name, so that whoever names it can share a call with those who do not.
    parameters = {SIGNATURE_NAME: name} if name and name != model.schema.default else {}
    return (fitted if _have_rows(signature, fitted) else WholeTensors(fitted)), parameters


def _have_rows(signature: ModelSignature, tensors: Arrays) -> bool:
    """Whether the tensors are rows that are computed each by itself."""
    if not all(tensor.shape and tensor.shape[0] < 0 for tensor in (*signature.inputs, *signature.outputs)):
        return False
    if not all(_fits(one.shape, tensors[one.name].shape) for one in signature.inputs):
        return False
    counts = {len(tensor) for tensor in tensors.values()}
    return len(counts) == 1 and counts != {0}


def _fitted(tensor: TensorSpec, array: NDArray[Any]) -> NDArray[Any]:
    """An input as it is declared. Raises InvalidInputs."""
    dtype = dtype_of(tensor.datatype)
    fits = not tensor.enforced or _fits(tensor.shape, array.shape)
    if dtype is None or not _widens(array.dtype, dtype) or not fits:
        raise InvalidInputs(_misfit(tensor.name, tensor.datatype, _sizes(tensor.shape), array))
    return _aligned(array.astype(dtype, copy=False))


def _widens(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether every number of one type is one of another of its kind: integers stay integers."""
    if given == wanted:
        return True
    return any({given.kind, wanted.kind} <= kinds for kinds in _KINDS) and np.can_cast(given, wanted)


_KINDS = ({"i", "u"}, {"f", "V"})


def _fits(wanted: Sequence[int] | None, given: Sequence[int]) -> bool:
    if wanted is None:
        return True
    return len(wanted) == len(given) and all(
        want in (-1, got) for want, got in zip(wanted, given, strict=True)
    )


# ---- rows


def _columns(schema: ModelSchema) -> dict[str, TensorSpec]:
    """The inputs by name, if they are columns of which a row has one value each."""
    if not schema.strict:
        return {}
    inputs = schema.signatures[schema.default].inputs
    return {} if inputs[0].name == INSTANCES else {tensor.name: tensor for tensor in inputs}


def _numbers(name: str, tensor: NDArray[Any], width: int | None) -> NDArray[Any]:
    """Rows of numbers in the types that JSON's would have, without a copy where they have them."""
    shape = (-1, width or -1)
    if not _fits(shape, tensor.shape):
        problem = _misfit(name, "numbers", _sizes(shape), tensor)
        if tensor.ndim == 1 and width in (None, len(tensor)):
            problem += f" A single row has the shape [1, {len(tensor)}]."
        raise InvalidInputs(problem)
    _counted(name, tensor)
    return _in_json_types(name, tensor)


def _in_json_types(name: str, tensor: NDArray[Any]) -> NDArray[Any]:
    """Integers as int64, all other numbers as float64."""
    if tensor.dtype.kind not in "biufV":
        raise InvalidInputs(_misfit(name, "numbers", _sizes((-1, *tensor.shape[1:])), tensor))
    if tensor.dtype == _UINT64 and int(tensor.max()) > _MOST_INT64:
        raise InvalidInputs(f"Input {name} has a number above {_MOST_INT64}; the model takes none such.")
    array = tensor.astype(_INT64 if tensor.dtype.kind in "biu" else _FLOAT64, copy=False)
    # Estimators may work in place (copy=False), as they can with what JSON brings.
    return array if array.flags.behaved else array.copy()


def _rows(
    name: str, tensor: NDArray[Any], schema: ModelSchema, columns: Mapping[str, TensorSpec]
) -> list[Any]:
    """Rows as plain values, just as JSON has them."""
    _counted(name, tensor)
    if columns:
        kinds = {wanted.datatype == BYTES for wanted in columns.values()}
        if kinds != {tensor.dtype.kind == "O"} or not _fits((-1, len(columns)), tensor.shape):
            raise InvalidInputs(_wrong_names(columns, (name,)))
    elif schema.strict:
        (wanted,) = schema.signatures[schema.default].inputs
        if wanted.shape == (-1,) and tensor.shape[1:] == (1,):
            tensor = tensor[:, 0]
        anything = wanted.datatype == BYTES and wanted.shape is None
        fits = (tensor.dtype.kind == "O") == (wanted.datatype == BYTES) and _fits(wanted.shape, tensor.shape)
        if not anything and not fits:
            raise InvalidInputs(_misfit(name, wanted.datatype, _sizes(wanted.shape), tensor))
    return _plain(tensor)


def _rows_of(tensors: Arrays, columns: Mapping[str, TensorSpec]) -> list[Any]:
    """Rows made of one tensor for each of their values: objects, or lists where columns have no names."""
    values = [_plain(tensor) for tensor in _side_by_side(tensors, columns)]
    rows = zip(*values, strict=True)
    if columns and all(name == f"{COLUMN_PREFIX}{place}" for place, name in enumerate(columns)):
        return [list(row) for row in rows]
    return [dict(zip(columns or tensors, row, strict=True)) for row in rows]


def _stacked(tensors: Arrays, columns: Mapping[str, TensorSpec]) -> NDArray[Any]:
    """Rows of numbers made of one tensor for each of them."""
    return np.column_stack(
        [
            _in_json_types(name, tensor)
            for name, tensor in zip(columns, _side_by_side(tensors, columns), strict=True)
        ]
    )


def _side_by_side(tensors: Arrays, columns: Mapping[str, TensorSpec]) -> list[NDArray[Any]]:
    """The tensors in the order of the columns, if there are any, all with as many rows."""
    if columns and tensors.keys() != columns.keys():
        raise InvalidInputs(_wrong_names(columns, tensors))
    counts = {name: _counted(name, tensor) for name, tensor in tensors.items()}
    first, count = next(iter(counts.items()))
    other = next((name for name in counts if counts[name] != count), None)
    if other is not None:
        raise InvalidInputs(
            "The inputs do not have the same number of rows: "
            f"{first} has {count}, {other} has {counts[other]}."
        )
    if not columns:
        return list(tensors.values())
    return [_column(wanted, tensors[name]) for name, wanted in columns.items()]


def _column(wanted: TensorSpec, tensor: NDArray[Any]) -> NDArray[Any]:
    """One value for each row."""
    text = wanted.datatype == BYTES
    if (tensor.dtype.kind == "O") != text or not (tensor.ndim == 1 or tensor.shape[1:] == (1,)):
        raise InvalidInputs(
            _misfit(wanted.name, wanted.datatype if text else "numbers", "[-1] or [-1, 1]", tensor)
        )
    return tensor.reshape(-1)


def _plain(tensor: NDArray[Any]) -> list[Any]:
    """A tensor as lists. Bytes become text where they are UTF-8."""
    if tensor.dtype.kind == "V":
        tensor = tensor.astype(_FLOAT64)
    if tensor.dtype.kind == "O":
        texts = np.empty(tensor.shape, object)
        texts.reshape(-1)[:] = [_text(value) for value in tensor.reshape(-1).tolist()]
        tensor = texts
    values: list[Any] = tensor.tolist()
    return values


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _counted(name: str, tensor: NDArray[Any]) -> int:
    """The number of rows. Raises InvalidInputs if there are none."""
    if not tensor.ndim:
        raise InvalidInputs(f"Input {name} is a single value; its first dimension is to be that of the rows.")
    if not len(tensor):
        raise InvalidInputs(f"Input {name} has no rows: there is nothing to predict.")
    return len(tensor)


def _aligned(array: NDArray[Any]) -> NDArray[Any]:
    """The array where libraries written in C expect it: a tensor in a body may begin anywhere."""
    return array if array.flags.aligned else array.copy()


# ---- answers


def _named_output(values: list[Any] | NDArray[Any]) -> NDArray[Any]:
    """A named output: as it is, but for what a method of an estimator gave, which may be texts or lists."""
    if isinstance(values, list) or values.dtype.kind == "U":
        return _answer(values)
    is_text = values.dtype.kind == "O" and values.size and not isinstance(values.flat[0], bytes)
    return _answer(values) if is_text else values


def _answer(predictions: list[Any] | NDArray[Any]) -> NDArray[Any]:
    array = predictions if isinstance(predictions, np.ndarray) else to_regular_array(predictions)
    if array is not None:
        if array.dtype.kind == "S":  # numpy cuts the zero bytes off the ends of its own texts
            array = np.array(predictions, object)
        if array.dtype.kind in "biufV":
            return array.astype(_FLOAT64) if array.dtype.kind == "f" and array.itemsize > 8 else array
        values = array.reshape(-1).tolist()
        if array.dtype.kind in "OU" and all(isinstance(value, str | bytes) for value in values):
            return _bytes(values, array.shape)
    lines = encode_lines(predictions).split(b"\n")
    return _bytes(lines[:-1], (len(lines) - 1,))


def _bytes(values: Iterable[str | bytes], shape: tuple[int, ...]) -> NDArray[Any]:
    array = np.empty(shape, object)
    try:
        array.reshape(-1)[:] = [value if isinstance(value, bytes) else value.encode() for value in values]
    except UnicodeEncodeError as error:
        raise InvalidOutputs(f"A prediction is a text that UTF-8 cannot carry: {error}.") from error
    return array


# ---- words for errors


def _misfit(name: str, kind: str, shape: str, given: NDArray[Any]) -> str:
    return (
        f"Input {name} takes {kind} of shape {shape}; "
        f"got {datatype_of(given.dtype)} of shape {_sizes(given.shape)}."
    )


def _wrong_names(wanted: Iterable[str], given: Iterable[str]) -> str:
    missing = [name for name in wanted if name not in given]
    if missing:
        problem = f"Input {missing[0]} is missing"
    else:
        problem = f"There is no input {next(name for name in given if name not in wanted)}"
    return f"{problem}: the model takes {_named(wanted)}; got {_named(given)}."


def _named(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more or "none"


def _sizes(shape: Sequence[int] | None) -> str:
    return "any" if shape is None else str(list(shape))
