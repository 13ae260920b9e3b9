"""TensorFlow Serving's REST API: predictions in rows and in columns, classification and regression.

Source: its page "RESTful API", and what its `json_tensor.cc` says where a request is wrong.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from serving.errors import InvalidArgument, InvalidInputs, InvalidOutputs, ServingError
from serving.node.dialects import Asked, Model, Reader, Reply
from serving.node.dialects.example_json import serialised, shown
from serving.node.dialects.examples import batch_of_examples, classes, regressions, require_graph
from serving.node.dialects.tensor_json import parse_json, text_of, text_of_values, texts_of
from serving.node.dialects.tensors import batch_of, signature_of, tensors_of
from serving.protocols import Call
from serving.protocols.errors import BARE_JSON, refusal
from serving.runtimes import ColumnsFormat, ColumnSpec, InputFormat, RowsFormat
from serving.runtimes.arguments import SIGNATURE_NAME
from serving.runtimes.codec import locate_array
from serving.runtimes.conversion import convert_instances, is_base64, to_tensor
from serving.runtimes.datatypes import dtype_of
from serving.runtimes.instances import Batch, WholeTensors
from serving.schema import TensorSpec

Fields = Mapping[str, Any]
Body = bytes | bytearray

_INSTANCES, _INPUTS = "instances", "inputs"
_HEADERS = (BARE_JSON,)
_OWN = frozenset({_INSTANCES, _INPUTS, SIGNATURE_NAME})
# Where the tensors begin: in rows, or in columns, with the name of the first one if they have names.
_BEGIN = re.compile(
    rb'"(?:(?P<rows>instances)|inputs)"\s*:\s*(?:\{\s*(?P<name>"[^"\\]*(?:\\.[^"\\]*)*")\s*:)?'
)


def reader(call: Call, model: Model) -> Reader:
    """The reader of a call. Raises FailedPrecondition where the model takes no examples."""
    match call.verb:
        case "classify":
            return Classify(call, model)
        case "regress":
            return Regress(call, model)
        case _:
            return Graph(call, model) if model.runtime.framework == "TENSORFLOW" else Plain(call, model)


class Shape(enum.Enum):
    """How a request for predictions has its tensors, and how it is answered."""

    ROWS = enum.auto()
    COLUMNS = enum.auto()


class _Reader:
    """What readers of all verbs have in common."""

    def __init__(self, call: Call, model: Model) -> None:
        self._call = call
        self._model = model

    def refuse(self, error: ServingError) -> Reply:
        """The error as TensorFlow Serving tells it, to which wrong outputs are wrong arguments."""
        if isinstance(error, InvalidOutputs) and self._model.runtime.framework == "TENSORFLOW":
            error = InvalidArgument(error.detail)
        return refusal(error, self._call.dialect)

    def _fields(self, body: Body) -> dict[str, Any]:
        fields = parse_json(body, self._model.levels)
        if not isinstance(fields, dict):
            raise InvalidInputs(f"JSON Value: {shown(fields)} Is not object")
        return fields


# ---- predictions


class _Predict(_Reader):
    """Predictions in rows, which are read as AI Platform's are, and in columns."""

    def read(self, body: Body) -> Asked:
        """What is to be computed. Numbers that are regular become no Python objects."""
        found = self._regular(body)
        return self._plain(body) if found is None else found

    def write(self, asked: Asked, predictions: Batch) -> Reply:
        """The predictions in the shape of the request. An output that is the only one loses its name."""
        if asked.state is Shape.ROWS:
            return _reply(b'{"predictions":%b}' % _rows(predictions))
        return _reply(b'{"outputs":%b}' % _columns(predictions))

    # ---- what the kinds of models differ in

    def _parameters(self, fields: Fields) -> dict[str, Any]:
        """The parameters of `predict`, of the fields of a body. Raises InvalidInputs."""
        raise NotImplementedError

    def _column_form(self, fields: Fields, name: str) -> InputFormat:
        """The form of a regular list of numbers that is all the inputs; `name` is "" if it has none."""
        raise NotImplementedError

    def _of_regular(self, batch: Batch, fields: Fields) -> Asked:
        """A regular list of numbers that is all the inputs, in the form that was asked for."""
        raise NotImplementedError

    def _of_inputs(self, value: Any, fields: Fields) -> Asked:
        """Any inputs."""
        raise NotImplementedError

    def _of_rows(self, batch: Batch, fields: Fields) -> Batch:
        """Instances in the form that was asked for, as they are to be computed."""
        del fields
        return batch

    # ---- the dense way

    def _regular(self, body: Body) -> Asked | None:
        begin = _BEGIN.search(body)
        if begin is None:
            return None
        return self._regular_rows(body) if begin["rows"] else self._regular_columns(body, begin["name"])

    def _regular_rows(self, body: Body) -> Asked | None:
        found = self._model.decoder.decode_regular(body, self._row_form)
        if found is None:
            return None
        batch, fields = found
        return Asked(self._of_rows(batch, fields), self._parameters(fields), Shape.ROWS)

    def _row_form(self, fields: Fields) -> InputFormat:
        _require_one(fields, _INPUTS)
        return self._model.runtime.input_format(self._parameters(fields))

    def _regular_columns(self, body: Body, written: bytes | None) -> Asked | None:
        name = _name(written)
        if name is None:
            return None

        def form_of(fields: Fields) -> InputFormat:
            _require_one(fields, _INSTANCES)
            return self._column_form(fields, name)

        found = self._model.decoder.decode_regular(body, form_of, locate_array(_INPUTS, name))
        return None if found is None else self._of_regular(*found)

    # ---- the plain way

    def _plain(self, body: Body) -> Asked:
        fields = self._fields(body)
        parameters = self._parameters(fields)
        if _INSTANCES not in fields:
            if _INPUTS not in fields:
                raise InvalidInputs("Missing 'inputs' or 'instances' key")
            return self._of_inputs(fields[_INPUTS], fields)
        _require_one(fields, _INPUTS)
        form = self._model.runtime.input_format(parameters)
        instances = _list(fields[_INSTANCES], _INSTANCES)
        if isinstance(form, ColumnsFormat):
            _require_alike(instances)
        return Asked(self._of_rows(convert_instances(instances, form), fields), parameters, Shape.ROWS)


class Graph(_Predict):
    """Of a SavedModel, whose inputs have names, types and shapes.

    Signatures that do not promise a row of every output for each instance are asked for whole tensors: their
    rows are whatever the outputs have.
    """

    def __init__(self, call: Call, model: Model) -> None:
        super().__init__(call, model)
        self._without_rows = frozenset(
            name
            for name, signature in model.schema.signatures.items()
            if all(one.shape != () for one in signature.inputs)
            and not (signature.outputs and all(one.shape and one.shape[0] < 0 for one in signature.outputs))
        )

    def _parameters(self, fields: Fields) -> dict[str, Any]:
        name = _signature_name(fields)
        # The default one has no name, so that whoever names it can share a call with those who do not.
        return {SIGNATURE_NAME: name} if name and name != self._model.schema.default else {}

    def _column_form(self, fields: Fields, name: str) -> InputFormat:
        inputs = signature_of(self._model, _signature_name(fields)).inputs
        if len(inputs) != 1 or name not in ("", inputs[0].name):
            return RowsFormat()
        return ColumnsFormat((_column(inputs[0]),))

    def _of_regular(self, batch: Batch, fields: Fields) -> Asked:
        return self._asked(tensors_of(batch), fields)

    def _of_rows(self, batch: Batch, fields: Fields) -> Batch:
        if not self._without_rows:
            return batch
        name = _signature_name(fields) or self._model.schema.default
        return WholeTensors(tensors_of(batch)) if name in self._without_rows else batch

    def _of_inputs(self, value: Any, fields: Fields) -> Asked:
        inputs = signature_of(self._model, _signature_name(fields)).inputs
        if not isinstance(value, dict) or (is_base64(value) and not any(one.name == "b64" for one in inputs)):
            if len(inputs) != 1:
                names = ", ".join(one.name for one in inputs)
                raise InvalidInputs(
                    "inputs is a plain value/list, but expecting an object as multiple input tensors "
                    f"required as per tensorinfo_map: {names}"
                )
            value = {inputs[0].name: value}
        for one in inputs:
            if one.name not in value:
                raise InvalidInputs(f"Missing named input: {one.name} in 'inputs' object.")
        return self._asked({one.name: to_tensor(value[one.name], _column(one)) for one in inputs}, fields)

    def _asked(self, tensors: Mapping[str, NDArray[Any]], fields: Fields) -> Asked:
        return Asked(*batch_of(self._model, tensors, _signature_name(fields)), Shape.COLUMNS)


class Plain(_Predict):
    """Of other models: columns are put together to rows, of which predictions are made as ever.

    Custom routines get all other fields of the body as their parameters, as from AI Platform.
    """

    def __init__(self, call: Call, model: Model) -> None:
        super().__init__(call, model)
        schema = model.schema
        self._open = model.runtime.framework == "CUSTOM"
        default = schema.signatures.get(schema.default)
        self._has_columns = schema.strict and default is not None and len(default.inputs) > 1

    def _parameters(self, fields: Fields) -> dict[str, Any]:
        _signature_name(fields)  # which is a string, and means nothing here
        return {key: value for key, value in fields.items() if key not in _OWN} if self._open else {}

    def _column_form(self, fields: Fields, name: str) -> InputFormat:
        return (
            RowsFormat()
            if name and self._has_columns
            else self._model.runtime.input_format(self._parameters(fields))
        )

    def _of_regular(self, batch: Batch, fields: Fields) -> Asked:
        return Asked(batch, self._parameters(fields), Shape.COLUMNS)

    def _of_inputs(self, value: Any, fields: Fields) -> Asked:
        parameters = self._parameters(fields)
        form = self._model.runtime.input_format(parameters)
        return Asked(convert_instances(self._rows(value), form), parameters, Shape.COLUMNS)

    def _rows(self, value: Any) -> list[Any]:
        if isinstance(value, dict) and (len(value) != 1 or self._has_columns):
            return _joined({name: _list(column, name) for name, column in value.items()})
        return _list(next(iter(value.values())) if isinstance(value, dict) else value, _INPUTS)


# ---- examples


class _Examples(_Reader):
    """What is asked of serialised examples. The state is their number."""

    def __init__(self, call: Call, model: Model) -> None:
        super().__init__(call, model)
        require_graph(model, call.verb)

    def read(self, body: Body) -> Asked:
        """The examples of a body, with the features of its context."""
        fields = self._fields(body)
        name = _signature_name(fields)
        examples = serialised(fields, self._call.verb)
        return Asked(*batch_of_examples(self._model, self._call.verb, name, examples), len(examples))


class Classify(_Examples):
    """Classes with their scores."""

    def write(self, asked: Asked, predictions: Batch) -> Reply:
        """For each example a list of [label, score]."""
        labels, scores = classes(tensors_of(predictions), asked.state)
        texts = zip(texts_of("classes", labels.ravel()), texts_of("scores", scores.ravel()), strict=True)
        pairs = [b"[%b,%b]" % pair for pair in texts]
        count, width = labels.shape
        rows = (b"[%b]" % b",".join(pairs[row * width : (row + 1) * width]) for row in range(count))
        return _reply(b'{"results":[%b]}' % b",".join(rows))


class Regress(_Examples):
    """A number each."""

    def write(self, asked: Asked, predictions: Batch) -> Reply:
        """For each example its value."""
        values = regressions(tensors_of(predictions), asked.state)
        return _reply(b'{"results":%b}' % text_of("outputs", values))


# ---- requests


def _signature_name(fields: Fields) -> str:
    name = fields.get(SIGNATURE_NAME, "")
    if not isinstance(name, str):
        raise InvalidInputs(
            f"JSON Value: {shown(name)} not formatted correctly. 'signature_name' key must be a string value."
        )
    return name


def _require_one(fields: Fields, other: str) -> None:
    if other in fields:
        raise InvalidInputs(
            "Not formatted correctly expecting only one of 'inputs' or 'instances' keys to exist"
        )


def _require_alike(instances: list[Any]) -> None:
    """All instances name their inputs, or none does. Raises InvalidInputs."""
    named = [isinstance(instance, dict) and not is_base64(instance) for instance in instances]
    if (not named[0]) in named:
        expected, given = ("object", "value/list") if named[0] else ("value/list", "object")
        place = named.index(not named[0])
        raise InvalidInputs(f"Expecting {expected} but got {given} at item {place} of input list")


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidInputs(f"JSON Value: {shown(value)} Excepting '{name}' to be an list/array")
    if not value:
        raise InvalidInputs(f"No values in '{name}' array: there is nothing to predict.")
    return value


def _joined(columns: Mapping[str, list[Any]]) -> list[Any]:
    """Rows that name their values."""
    if not columns:
        raise InvalidInputs("No values in 'inputs' object: there is nothing to predict.")
    if len({len(column) for column in columns.values()}) > 1:
        told = ", ".join(f"{name} has {len(column)}" for name, column in columns.items())
        raise InvalidInputs(f"The inputs do not have the same number of rows: {told}.")
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _name(text: bytes | None) -> str | None:
    """The name of which this is the JSON; "" for none, None for no name."""
    try:
        return str(orjson.loads(text)) if text else ""
    except orjson.JSONDecodeError:
        return None


def _column(tensor: TensorSpec) -> ColumnSpec:
    dtype = dtype_of(tensor.datatype)
    if dtype is None or dtype.kind == "c":
        raise InvalidInputs(f"Input {tensor.name} takes {tensor.datatype}, for which there is no JSON.")
    return ColumnSpec(tensor.name, dtype, None)


# ---- answers


def _reply(body: bytes) -> Reply:
    return Reply(200, body, _HEADERS)


def _rows(predictions: Batch) -> bytes:
    if isinstance(predictions, WholeTensors):
        _require_rows(predictions)
        predictions = tensors_of(predictions)
    if not isinstance(predictions, dict) or len(predictions) < 2:
        return _columns(predictions)
    columns = [
        [b"%b:%b" % (key, text) for text in texts_of(name, column)]
        for name, column in predictions.items()
        for key in (orjson.dumps(name),)
    ]
    return b"[%b]" % b",".join(b"{%b}" % b",".join(row) for row in zip(*columns, strict=True))


def _require_rows(outputs: WholeTensors) -> None:
    """Raise InvalidOutputs for outputs that have no rows, or differ in how many."""
    for name, output in outputs.values.items():
        if not output.ndim:
            raise InvalidOutputs(
                f"Output {name} is a single value, of which there is none for each row. "
                'Send the inputs in columns ({"inputs": ...}) instead of "instances".'
            )
    if len({len(output) for output in outputs.values.values()}) > 1:
        told = ", ".join(f"{name} has {len(output)}" for name, output in outputs.values.items())
        raise InvalidOutputs(f"The outputs do not have the same number of rows: {told}.")


def _columns(predictions: Batch) -> bytes:
    if isinstance(predictions, list):
        return text_of_values(predictions)
    if isinstance(predictions, np.ndarray):
        return text_of("predictions", predictions)
    outputs = predictions.values if isinstance(predictions, WholeTensors) else predictions
    if not outputs:
        raise InvalidOutputs("The signature has no outputs, so there is nothing to answer.")
    if len(outputs) == 1:
        ((name, output),) = outputs.items()
        return text_of(name, output)
    texts = (b"%b:%b" % (orjson.dumps(name), text_of(name, output)) for name, output in outputs.items())
    return b"{%b}" % b",".join(texts)
