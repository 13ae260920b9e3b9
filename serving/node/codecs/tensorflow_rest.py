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
from serving.model_schema import TensorSpec
from serving.node.codecs import Codec, DecodedRequest, Reply, ServedModel
from serving.node.codecs.classify_regress import (
    examples_to_batch,
    extract_labels_and_scores,
    extract_regressions,
    require_tensorflow_model,
)
from serving.node.codecs.example_json import serialize_json_examples, shorten_json
from serving.node.codecs.tensor_json import parse_extended_json, rows_to_json, tensor_to_json, values_to_json
from serving.node.codecs.tensor_mapping import batch_to_tensors, find_signature, tensors_to_batch
from serving.protocols import RequestMetadata
from serving.protocols.errors import JSON_WITHOUT_CHARSET, render_error
from serving.runtimes import ColumnsFormat, ColumnSpec, InputFormat, RowsFormat
from serving.runtimes.datatypes import dtype_of
from serving.runtimes.input_conversion import convert_instances, is_base64, to_tensor
from serving.runtimes.instance_batch import Batch, WholeTensors
from serving.runtimes.json_codec import make_array_location
from serving.runtimes.prediction_methods import SIGNATURE_NAME

Fields = Mapping[str, Any]
Body = bytes | bytearray

_INSTANCES, _INPUTS = "instances", "inputs"
_HEADERS = (JSON_WITHOUT_CHARSET,)
_PROTOCOL_FIELDS = frozenset({_INSTANCES, _INPUTS, SIGNATURE_NAME})
# Where the tensors begin: in rows, or in columns, with the name of the first one if they have names.
_TENSORS_START = re.compile(
    rb'"(?:(?P<rows>instances)|inputs)"\s*:\s*(?:\{\s*(?P<name>"[^"\\]*(?:\\.[^"\\]*)*")\s*:)?'
)


def create_codec(call: RequestMetadata, model: ServedModel) -> Codec:
    """Raises FailedPrecondition where the model takes no examples."""
    match call.verb:
        case "classify":
            return ClassifyCodec(call, model)
        case "regress":
            return RegressCodec(call, model)
        case _:
            return (
                NamedTensorsPredictCodec(call, model)
                if model.runtime.framework.takes_named_tensors
                else GenericPredictCodec(call, model)
            )


class TensorLayout(enum.Enum):
    """How a request for predictions has its tensors, and how it is answered."""

    ROWS = enum.auto()
    COLUMNS = enum.auto()


class _RestCodec:
    """What the codecs of all verbs share."""

    def __init__(self, call: RequestMetadata, model: ServedModel) -> None:
        self._call = call
        self._model = model

    def encode_error(self, error: ServingError) -> Reply:
        """The error in TensorFlow Serving's form, where invalid outputs are invalid arguments."""
        if isinstance(error, InvalidOutputs) and self._model.runtime.framework.served_by_tensorflow_serving:
            error = InvalidArgument(error.detail)
        return render_error(error, self._call.dialect)

    def _parse_fields(self, body: Body) -> dict[str, Any]:
        fields = parse_extended_json(body, self._model.max_json_depth)
        if not isinstance(fields, dict):
            raise InvalidInputs(f"JSON Value: {shorten_json(fields)} Is not object")
        return fields


# ---- predictions


class _PredictCodec(_RestCodec):
    """Predictions in rows, decoded as AI Platform's are, and in columns."""

    def decode_request(self, body: Body) -> DecodedRequest:
        """Decode regular lists of numbers without a Python object per number, anything else as JSON."""
        found = self._decode_regular(body)
        return self._decode_any(body) if found is None else found

    def encode_response(self, decoded: DecodedRequest, predictions: Batch) -> Reply:
        """The predictions in the shape of the request. An output that is the only one loses its name."""
        if decoded.state is TensorLayout.ROWS:
            return _make_reply(b'{"predictions":%b}' % _encode_rows(predictions))
        return _make_reply(b'{"outputs":%b}' % _encode_columns(predictions))

    # ---- what depends on the kind of model

    def _predict_parameters(self, fields: Fields) -> dict[str, Any]:
        """The parameters of `predict`, of the fields of a body. Raises InvalidInputs."""
        raise NotImplementedError

    def _column_format(self, fields: Fields, name: str) -> InputFormat:
        """The form of a regular list of numbers that is all the inputs; `name` is "" if it has none."""
        raise NotImplementedError

    def _request_from_batch(self, batch: Batch, fields: Fields) -> DecodedRequest:
        """A regular list of numbers that is all the inputs, as `_column_format` gave it."""
        raise NotImplementedError

    def _request_from_inputs(self, value: Any, fields: Fields) -> DecodedRequest:
        """Any inputs."""
        raise NotImplementedError

    def _wrap_whole_tensors(self, batch: Batch, fields: Fields) -> Batch:
        """Instances as they are computed."""
        del fields
        return batch

    # ---- regular lists of numbers

    def _decode_regular(self, body: Body) -> DecodedRequest | None:
        begin = _TENSORS_START.search(body)
        if begin is None:
            return None
        return (
            self._decode_regular_rows(body)
            if begin["rows"]
            else self._decode_regular_columns(body, begin["name"])
        )

    def _decode_regular_rows(self, body: Body) -> DecodedRequest | None:
        found = self._model.decoder.decode_regular(body, self._row_format)
        if found is None:
            return None
        batch, fields = found
        return DecodedRequest(
            self._wrap_whole_tensors(batch, fields), self._predict_parameters(fields), TensorLayout.ROWS
        )

    def _row_format(self, fields: Fields) -> InputFormat:
        _require_absent(fields, _INPUTS)
        return self._model.runtime.input_format(self._predict_parameters(fields))

    def _decode_regular_columns(self, body: Body, written: bytes | None) -> DecodedRequest | None:
        name = _parse_input_name(written)
        if name is None:
            return None

        def form_of(fields: Fields) -> InputFormat:
            _require_absent(fields, _INSTANCES)
            return self._column_format(fields, name)

        found = self._model.decoder.decode_regular(body, form_of, make_array_location(_INPUTS, name))
        return None if found is None else self._request_from_batch(*found)

    # ---- any JSON

    def _decode_any(self, body: Body) -> DecodedRequest:
        fields = self._parse_fields(body)
        parameters = self._predict_parameters(fields)
        if _INSTANCES not in fields:
            if _INPUTS not in fields:
                raise InvalidInputs("Missing 'inputs' or 'instances' key")
            return self._request_from_inputs(fields[_INPUTS], fields)
        _require_absent(fields, _INPUTS)
        form = self._model.runtime.input_format(parameters)
        instances = _require_list(fields[_INSTANCES], _INSTANCES)
        if isinstance(form, ColumnsFormat):
            _require_alike(instances)
        return DecodedRequest(
            self._wrap_whole_tensors(convert_instances(instances, form), fields),
            parameters,
            TensorLayout.ROWS,
        )


class NamedTensorsPredictCodec(_PredictCodec):
    """For SavedModels, whose inputs have names, types and shapes.

    Signatures that do not promise a row of every output for each instance are asked for whole tensors: their
    rows are whatever the outputs have.
    """

    def __init__(self, call: RequestMetadata, model: ServedModel) -> None:
        super().__init__(call, model)
        self._signatures_without_rows = frozenset(
            name
            for name, signature in model.schema.signatures.items()
            if all(one.shape != () for one in signature.inputs)
            and not (signature.outputs and all(one.shape and one.shape[0] < 0 for one in signature.outputs))
        )

    def _predict_parameters(self, fields: Fields) -> dict[str, Any]:
        name = _signature_name(fields)
        # The default one has no name, so that whoever names it can share a call with those who do not.
        return {SIGNATURE_NAME: name} if name and name != self._model.schema.default else {}

    def _column_format(self, fields: Fields, name: str) -> InputFormat:
        inputs = find_signature(self._model, _signature_name(fields)).inputs
        if len(inputs) != 1 or name not in ("", inputs[0].name):
            return RowsFormat()
        return ColumnsFormat((_make_column_spec(inputs[0]),))

    def _request_from_batch(self, batch: Batch, fields: Fields) -> DecodedRequest:
        return self._build_request(batch_to_tensors(batch), fields)

    def _wrap_whole_tensors(self, batch: Batch, fields: Fields) -> Batch:
        if not self._signatures_without_rows:
            return batch
        name = _signature_name(fields) or self._model.schema.default
        return WholeTensors(batch_to_tensors(batch)) if name in self._signatures_without_rows else batch

    def _request_from_inputs(self, value: Any, fields: Fields) -> DecodedRequest:
        inputs = find_signature(self._model, _signature_name(fields)).inputs
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
        return self._build_request(
            {one.name: to_tensor(value[one.name], _make_column_spec(one)) for one in inputs}, fields
        )

    def _build_request(self, tensors: Mapping[str, NDArray[Any]], fields: Fields) -> DecodedRequest:
        return DecodedRequest(
            *tensors_to_batch(self._model, tensors, _signature_name(fields)), TensorLayout.COLUMNS
        )


class GenericPredictCodec(_PredictCodec):
    """For other models: columns are joined to rows.

    Custom routines get all other fields of the body as their parameters, as from AI Platform.
    """

    def __init__(self, call: RequestMetadata, model: ServedModel) -> None:
        super().__init__(call, model)
        schema = model.schema
        self._takes_extra_fields = model.runtime.framework.runs_user_code
        default = schema.signatures.get(schema.default)
        self._has_columns = schema.strict and default is not None and len(default.inputs) > 1

    def _predict_parameters(self, fields: Fields) -> dict[str, Any]:
        _signature_name(fields)  # which is a string, and means nothing here
        return (
            {key: value for key, value in fields.items() if key not in _PROTOCOL_FIELDS}
            if self._takes_extra_fields
            else {}
        )

    def _column_format(self, fields: Fields, name: str) -> InputFormat:
        return (
            RowsFormat()
            if name and self._has_columns
            else self._model.runtime.input_format(self._predict_parameters(fields))
        )

    def _request_from_batch(self, batch: Batch, fields: Fields) -> DecodedRequest:
        return DecodedRequest(batch, self._predict_parameters(fields), TensorLayout.COLUMNS)

    def _request_from_inputs(self, value: Any, fields: Fields) -> DecodedRequest:
        parameters = self._predict_parameters(fields)
        form = self._model.runtime.input_format(parameters)
        return DecodedRequest(
            convert_instances(self._rows_from_inputs(value), form), parameters, TensorLayout.COLUMNS
        )

    def _rows_from_inputs(self, value: Any) -> list[Any]:
        if isinstance(value, dict) and (len(value) != 1 or self._has_columns):
            return _join_columns({name: _require_list(column, name) for name, column in value.items()})
        return _require_list(next(iter(value.values())) if isinstance(value, dict) else value, _INPUTS)


# ---- examples


class _ExamplesCodec(_RestCodec):
    """Takes serialised examples. The state is their number."""

    def __init__(self, call: RequestMetadata, model: ServedModel) -> None:
        super().__init__(call, model)
        require_tensorflow_model(model, call.verb)

    def decode_request(self, body: Body) -> DecodedRequest:
        fields = self._parse_fields(body)
        name = _signature_name(fields)
        examples = serialize_json_examples(fields, self._call.verb)
        return DecodedRequest(*examples_to_batch(self._model, self._call.verb, name, examples), len(examples))


class ClassifyCodec(_ExamplesCodec):
    """Classes with their scores."""

    def encode_response(self, decoded: DecodedRequest, predictions: Batch) -> Reply:
        """For each example a list of [label, score]."""
        labels, scores = extract_labels_and_scores(batch_to_tensors(predictions), decoded.state)
        texts = zip(
            rows_to_json("classes", labels.ravel()), rows_to_json("scores", scores.ravel()), strict=True
        )
        pairs = [b"[%b,%b]" % pair for pair in texts]
        count, width = labels.shape
        rows = (b"[%b]" % b",".join(pairs[row * width : (row + 1) * width]) for row in range(count))
        return _make_reply(b'{"results":[%b]}' % b",".join(rows))


class RegressCodec(_ExamplesCodec):
    """One value per example."""

    def encode_response(self, decoded: DecodedRequest, predictions: Batch) -> Reply:
        values = extract_regressions(batch_to_tensors(predictions), decoded.state)
        return _make_reply(b'{"results":%b}' % tensor_to_json("outputs", values))


# ---- requests


def _signature_name(fields: Fields) -> str:
    name = fields.get(SIGNATURE_NAME, "")
    if not isinstance(name, str):
        raise InvalidInputs(
            f"JSON Value: {shorten_json(name)} not formatted correctly. 'signature_name' key must be a "
            "string value."
        )
    return name


def _require_absent(fields: Fields, other: str) -> None:
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


def _require_list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidInputs(f"JSON Value: {shorten_json(value)} Excepting '{name}' to be an list/array")
    if not value:
        raise InvalidInputs(f"No values in '{name}' array: there is nothing to predict.")
    return value


def _join_columns(columns: Mapping[str, list[Any]]) -> list[Any]:
    """Columns to rows, as objects."""
    if not columns:
        raise InvalidInputs("No values in 'inputs' object: there is nothing to predict.")
    if len({len(column) for column in columns.values()}) > 1:
        counts = ", ".join(f"{name} has {len(column)}" for name, column in columns.items())
        raise InvalidInputs(f"The inputs do not have the same number of rows: {counts}.")
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _parse_input_name(text: bytes | None) -> str | None:
    """The name of which this is the JSON; "" for none, None for no name."""
    try:
        return str(orjson.loads(text)) if text else ""
    except orjson.JSONDecodeError:
        return None


def _make_column_spec(tensor: TensorSpec) -> ColumnSpec:
    dtype = dtype_of(tensor.datatype)
    if dtype is None or dtype.kind == "c":
        raise InvalidInputs(f"Input {tensor.name} takes {tensor.datatype}, for which there is no JSON.")
    return ColumnSpec(tensor.name, dtype, None)


# ---- answers


def _make_reply(body: bytes) -> Reply:
    return Reply(200, body, _HEADERS)


def _encode_rows(predictions: Batch) -> bytes:
    if isinstance(predictions, WholeTensors):
        _require_rows(predictions)
        predictions = batch_to_tensors(predictions)
    if not isinstance(predictions, dict) or len(predictions) < 2:
        return _encode_columns(predictions)
    columns = [
        [b"%b:%b" % (key, text) for text in rows_to_json(name, column)]
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
        counts = ", ".join(f"{name} has {len(output)}" for name, output in outputs.values.items())
        raise InvalidOutputs(f"The outputs do not have the same number of rows: {counts}.")


def _encode_columns(predictions: Batch) -> bytes:
    if isinstance(predictions, list):
        return values_to_json(predictions)
    if isinstance(predictions, np.ndarray):
        return tensor_to_json("predictions", predictions)
    outputs = predictions.values if isinstance(predictions, WholeTensors) else predictions
    if not outputs:
        raise InvalidOutputs("The signature has no outputs, so there is nothing to answer.")
    if len(outputs) == 1:
        ((name, output),) = outputs.items()
        return tensor_to_json(name, output)
    texts = (
        b"%b:%b" % (orjson.dumps(name), tensor_to_json(name, output)) for name, output in outputs.items()
    )
    return b"{%b}" % b",".join(texts)
