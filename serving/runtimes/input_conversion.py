"""Instances given as plain Python values, put into the form a runtime asks for.

Every way in which instances can fail to fit a model is worded here: which instance, which input, what
was expected and what came. Source: section 3.1 of the AI Platform contract.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.errors import InvalidInputs
from serving.runtimes import ArrayFormat, ColumnsFormat, ColumnSpec, InputFormat, RowsFormat
from serving.runtimes.instance_batch import Batch, DependentColumns

# Deeper arrays are not to be had of numpy.
MAX_DIMENSIONS = 32


def convert_instances(instances: list[Any], form: InputFormat, *, lenient: bool = False) -> Batch:
    """Instances given as Python values, in the form a runtime asks for. Raises InvalidInputs.

    `lenient`: as AI Platform took them, whatever numpy makes a number of the wanted type of: a text with a
    number in it, a boolean, a float where an integer is wanted (its fraction is lost), null for NaN in
    floats.
    """
    try:
        match form:
            case RowsFormat():
                return instances
            case ArrayFormat():
                return _to_numeric_array(instances, form, lenient)
            case ColumnsFormat():
                return _to_columns(instances, form, lenient)
    except RecursionError as error:
        raise InvalidInputs("The instances are nested too deeply.") from error


def to_tensor(value: Any, column: ColumnSpec) -> NDArray[Any]:
    """A value as a tensor of any shape: a scalar, or a regular list. Raises InvalidInputs.

    Of the column only name and type are heeded.
    """
    try:
        array = _to_column_type([value], column, is_tensor=True)
    except RecursionError as error:
        raise InvalidInputs(f"Input {column.name} is nested too deeply.") from error
    return array.reshape(array.shape[1:])


def _to_numeric_array(instances: list[Any], form: ArrayFormat, lenient: bool) -> Batch:
    if form.allows_objects and isinstance(instances[0], dict):
        for index, row in enumerate(instances):
            if not isinstance(row, dict):
                raise InvalidInputs(
                    f"Instance {index} is {describe_json_type(row)}, but instance 0 is an object."
                )
        return instances
    array = to_regular_array(instances)
    if (
        array is not None
        and array.ndim == 2
        and array.dtype.kind in "iuf"
        and form.width in (None, array.shape[1])
    ):
        return array
    for index, row in enumerate(instances):
        if not isinstance(row, list):
            raise InvalidInputs(
                f"Instance {index} is {describe_json_type(row)}; expected a list of "
                f"{_format_width(form.width)}numbers."
            )
        if form.width is not None and len(row) != form.width:
            raise InvalidInputs(f"Instance {index} has {len(row)} values; the model expects {form.width}.")
        if len(row) != len(instances[0]):
            raise InvalidInputs(
                f"Instance {index} has {len(row)} values, instance 0 has {len(instances[0])}: "
                "all instances must have the same number."
            )
    return _convert_unusual_rows(instances, form, lenient)


def _convert_unusual_rows(instances: list[Any], form: ArrayFormat, lenient: bool) -> Batch:
    """Rows that are not plainly numeric: null as NaN, booleans left to the library, or a clear error."""
    needs_conversion = False
    for index, row in enumerate(instances):
        for position, value in enumerate(row):
            if value is None and not form.nullable:
                raise InvalidInputs(
                    f"Instance {index}, value {position} is null; this model does not take missing values."
                )
            if isinstance(value, str) and lenient and _is_numeric_text(value):
                needs_conversion = True
            elif value is not None and not isinstance(value, bool | int | float):
                raise InvalidInputs(
                    f"Instance {index}, value {position} is {describe_json_type(value)}; expected a number."
                )
            needs_conversion = needs_conversion or value is None
    # From texts numpy would make texts of all.
    return np.array(instances, object).astype(np.float64) if needs_conversion else instances


def _is_numeric_text(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _to_columns(instances: list[Any], form: ColumnsFormat, lenient: bool) -> dict[str, NDArray[Any]]:
    columns = (
        _extract_single_column(instances, form)
        if len(form.inputs) == 1
        else _extract_columns(instances, form)
    )
    arrays = {
        column.name: _convert_column(values, column, lenient)
        for column, values in zip(form.inputs, columns, strict=True)
    }
    declared = all(column.enforced or shape_fits(arrays[column.name], column) for column in form.inputs)
    return arrays if declared else DependentColumns(arrays)


def _extract_single_column(instances: list[Any], form: ColumnsFormat) -> list[list[Any]]:
    """The values of a model with one input: bare, or as `{"input": value}`."""
    name = form.inputs[0].name
    takes_bytes = form.inputs[0].dtype.kind == "O"
    values = []
    for index, instance in enumerate(instances):
        if not isinstance(instance, dict) or (takes_bytes and is_base64(instance) and name != "b64"):
            values.append(instance)
        elif list(instance) == [name]:
            values.append(instance[name])
        else:
            raise InvalidInputs(
                f"Instance {index}: Expected tensor name: {name}, got tensor name: {list(instance)}."
            )
    return [values]


def _extract_columns(instances: list[Any], form: ColumnsFormat) -> list[list[Any]]:
    names = [column.name for column in form.inputs]
    known = set(names)
    for index, instance in enumerate(instances):
        if not isinstance(instance, dict):
            raise InvalidInputs(
                f"Instance {index} is {describe_json_type(instance)}; the model has several inputs, so each "
                f"instance must be an object with the keys {names}."
            )
        for key in instance:
            if key not in known:
                raise InvalidInputs(f"Unexpected tensor name: {key} in instance {index}; known: {names}.")
    for name in names:
        for index, instance in enumerate(instances):
            if name not in instance:
                raise InvalidInputs(
                    f"Input {name} was missing in at least one input instance (instance {index})."
                )
    return [[instance[name] for instance in instances] for name in names]


def _convert_column(values: list[Any], column: ColumnSpec, lenient: bool) -> NDArray[Any]:
    array = _to_column_type(values, column, lenient=lenient)
    if column.enforced and not shape_fits(array, column):
        raise InvalidInputs(
            f"Input {column.name} expects {_format_shape(column.shape)} per instance, "
            f"got {_format_shape(array.shape[1:])}."
        )
    return array


def _to_column_type(
    values: list[Any], column: ColumnSpec, *, is_tensor: bool = False, lenient: bool = False
) -> NDArray[Any]:
    """The values as an array of the column's type; `is_tensor`: there is one, and it is no instance."""
    if column.dtype.kind == "O":
        return _to_bytes_array(values, column, is_tensor)
    return _to_numbers(values, column, is_tensor=is_tensor, lenient=lenient)


def _to_numbers(values: list[Any], column: ColumnSpec, *, is_tensor: bool, lenient: bool) -> NDArray[Any]:
    array = to_regular_array(values)
    if array is None:
        raise InvalidInputs(_ragged_message(values, column.name, is_tensor))
    mixed = not lenient and array.dtype.kind in "iuf" and _contains_type(bool, values)
    if mixed or (array.dtype.kind not in _accepted_kinds(column) and array.size):
        # An array of numbers may have rounded some of them.
        converted = _cast_leniently(np.array(values, object), column.dtype) if lenient else None
        if converted is None:
            raise InvalidInputs(_type_mismatch_message(values, column, is_tensor=is_tensor, lenient=lenient))
        array = converted
    if column.dtype.kind in "iu" and not fits_integer_range(array, column.dtype):
        raise InvalidInputs(f"Input {column.name}: a number is out of the range of {column.dtype}.")
    return array.astype(column.dtype, copy=False)


def _cast_leniently(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """What numpy makes numbers of a type of; None where it makes none."""
    try:
        match dtype.kind:
            case "i" | "u":
                flat = [int(value) for value in array.reshape(-1).tolist()]
                return np.array(flat).reshape(array.shape)
            case "f" | "V":
                return array.astype(np.float64)
            case "b" if all(value in (0, 1) for value in array.reshape(-1).tolist()):
                return array.astype(bool)
            case _:
                return None
    except (TypeError, ValueError, OverflowError):
        return None


def _type_mismatch_message(values: list[Any], column: ColumnSpec, *, is_tensor: bool, lenient: bool) -> str:
    """Which value is not of the column's type, in words."""
    leaves = ((index, leaf) for index, row in enumerate(values) for leaf in _iterate_leaves(row))
    found = next(((index, leaf) for index, leaf in leaves if not _fits_type(leaf, column, lenient)), None)
    if found is None and lenient:
        return _ragged_message(values, column.name, is_tensor)
    index, value = found or (0, values[0])
    return (
        f"{_describe_location(index, column.name, is_tensor)} takes "
        f"{_KIND_NAMES.get(column.dtype.kind, 'numbers')} ({column.dtype}), "
        f"got {describe_json_type(value)}{_quote_short(value)}."
    )


def _fits_type(value: Any, column: ColumnSpec, lenient: bool) -> bool:
    if _find_value_kind(value) in _accepted_kinds(column):
        return True
    cell = np.empty(1, object)
    cell[0] = value
    return lenient and _cast_leniently(cell, column.dtype) is not None


def _accepted_kinds(column: ColumnSpec) -> str:
    return _ACCEPTED_KINDS.get(column.dtype.kind, "iuf")


# What np.array(list) may give for a column of a kind; ints are welcome where floats are wanted.
_ACCEPTED_KINDS = {"f": "iuf", "V": "iuf", "c": "iuf", "i": "iu", "u": "iu", "b": "b"}
_KIND_NAMES = {"f": "numbers", "i": "integers", "u": "integers", "b": "booleans"}


def to_regular_array(values: list[Any]) -> NDArray[Any] | None:
    """np.array(values) when the values are regular, None when they are ragged; with text in them, of objects.

    An array of numpy's own texts has room for the longest one in every place: a body of a few megabytes
    could ask for all the memory there is.
    """
    try:
        return np.array(values, object if _contains_type(str, values) else None)
    except (ValueError, OverflowError):
        return None


def _contains_type(wanted: type, values: list[Any]) -> bool:
    """Whether a value of just this type is anywhere in nested lists."""
    kinds = set(map(type, values))
    return wanted in kinds or (
        list in kinds and any(_contains_type(wanted, value) for value in values if type(value) is list)
    )


def _to_bytes_array(values: list[Any], column: ColumnSpec, is_tensor: bool) -> NDArray[Any]:
    converted = [_to_bytes(value, column.name, index, is_tensor) for index, value in enumerate(values)]
    shape: list[int] = []
    first: Any = converted
    while isinstance(first, list):
        shape.append(len(first))
        if not first:
            break
        first = first[0]
    if len(shape) > MAX_DIMENSIONS:
        raise InvalidInputs(f"Input {column.name} is nested too deeply.")
    array = np.empty(shape, object)
    flat = list(_iterate_leaves(converted))
    if len(flat) != array.size or not _is_regular(converted, shape):
        raise InvalidInputs(_ragged_message(values, column.name, is_tensor))
    array.reshape(-1)[:] = flat
    return array


def _to_bytes(value: Any, name: str, index: int, is_tensor: bool) -> Any:
    """Strings as UTF-8, `{"b64": ...}` decoded, lists element by element; bytes, which no JSON has, stay."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    if isinstance(value, list):
        return [_to_bytes(element, name, index, is_tensor) for element in value]
    if is_base64(value):
        try:
            return base64.b64decode(value["b64"], validate=True)
        except (binascii.Error, ValueError) as error:
            where = _describe_location(index, name, is_tensor)
            raise InvalidInputs(f"{where} holds invalid base64: {error}.") from error
    raise InvalidInputs(
        f'{_describe_location(index, name, is_tensor)} takes strings or {{"b64": "..."}}, '
        f"got {describe_json_type(value)}{_quote_short(value)}."
    )


def is_base64(value: Any) -> bool:
    """Whether a value is bytes as JSON has them: `{"b64": "..."}`."""
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get("b64"), str)


def _is_regular(value: Any, shape: Sequence[int]) -> bool:
    if not shape:
        return not isinstance(value, list)
    return (
        isinstance(value, list)
        and len(value) == shape[0]
        and all(_is_regular(element, shape[1:]) for element in value)
    )


def _iterate_leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for element in value:
            yield from _iterate_leaves(element)
    else:
        yield value


def shape_fits(array: NDArray[Any], column: ColumnSpec) -> bool:
    """Whether the rows of an array have the shape of the input."""
    if column.shape is None:
        return True
    shape = array.shape[1:]
    if shape == column.shape:
        return True
    return len(shape) == len(column.shape) and all(
        want in (None, got) for want, got in zip(column.shape, shape, strict=True)
    )


def fits_integer_range(array: NDArray[Any], dtype: np.dtype[Any]) -> bool:
    """Whether an integer dtype can hold every number of the array."""
    if not array.size:
        return True
    limits = np.iinfo(dtype)
    # As Python's numbers, which compare exactly: to numpy 2^63 - 1 is 2^63 beside a float64.
    lowest, highest = array.min(keepdims=True).item(), array.max(keepdims=True).item()
    return bool(limits.min <= lowest and highest <= limits.max)


# ---- words for errors


def _describe_location(index: int, name: str, is_tensor: bool) -> str:
    return f"Input {name}" if is_tensor else f"Instance {index}: input {name}"


def _ragged_message(values: list[Any], name: str, is_tensor: bool) -> str:
    if is_tensor:
        return f"Input {name} is ragged: lists of the same level must have the same length."
    lengths = {len(value) if isinstance(value, list) else -1 for value in values}
    where = "the instances differ in shape" if len(lengths) > 1 else "an instance is ragged"
    return f"Input {name}: {where}; all instances, and all rows within one, must have the same shape."


def _find_value_kind(value: Any) -> str:
    match value:
        case bool():
            return "b"
        case int():
            return "i"
        case float():
            return "f"
        case _:
            return "O"


def describe_json_type(value: Any) -> str:
    """A JSON value in words, for messages."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case _:
            return "an object"


def _quote_short(value: Any) -> str:
    """The value in brackets when it is short enough to help."""
    text = repr(value)
    return f" ({text})" if value is not None and len(text) <= 40 else ""


def _format_width(width: int | None) -> str:
    return "" if width is None else f"{width} "


def _format_shape(shape: tuple[int | None, ...] | None) -> str:
    if not shape:
        return "a single value"
    return "shape [" + ", ".join("?" if size is None else str(size) for size in shape) + "]"
