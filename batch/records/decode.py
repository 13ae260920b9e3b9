"""Records as instances: a whole block at once where its lines are plain numbers, else record by record.

Source: the raw-line rule in section 4 of the AI Platform contract.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from batch.records.blocks import BatchedBlock, RecordBlock, RejectedRecord, reject_record
from serving.errors import InvalidInputs
from serving.runtimes import ColumnsFormat, InputFormat
from serving.runtimes.input_conversion import convert_instances, describe_json_type
from serving.runtimes.instance_batch import Batch, concatenate_batches, concatenation_key
from serving.runtimes.json_codec import InstancesDecoder

# The fields of a line of the online request log, and its optional fields; see docs/logging.md.
_LOGGED_FIELDS = frozenset({"model", "model_version", "time", "raw_data", "raw_prediction", "groundtruth"})
_EXTRA_LOGGED_FIELDS = frozenset({"project", "record_id", "request_id"})  # not in the table of the contract
# With keys: the name of the field with the instance, where that is not an object.
_INSTANCE_FIELD = "instance"


class RecordDecoder:
    """Decodes blocks for a model with the input format `form`; `keys` are fields not given to the model.

    One per thread: its parser's buffers are reused.
    """

    def __init__(self, form: InputFormat, keys: Sequence[str] = ()) -> None:
        self._form = form
        self._keys = tuple(keys)
        self._raw = takes_raw_lines(form)
        self._decoder = InstancesDecoder()

    def decode(self, block: RecordBlock) -> BatchedBlock:
        """The instances of a block, and the records that are rejected."""
        if block.last:
            return BatchedBlock(block, ())
        if not self._keys and not self._raw and block.records is None:
            dense = self._decoder.decode_dense_lines(block.data, self._form)
            if dense is not None:
                return BatchedBlock(block, (dense,))
        return self._decode_each(block)

    def _decode_each(self, block: RecordBlock) -> BatchedBlock:
        lines = block.split_records()
        rows: list[_Row] = []
        rejected: list[RejectedRecord] = []
        for number, (offset, record) in enumerate(lines):
            try:
                rows.extend([_Row(number, *found) for found in self._parse_record(record)])
            except InvalidInputs as error:
                rejected.append(reject_record((offset, record), error))
        parts, refusals = self._convert_rows(rows)
        rejected += [reject_record(lines[rows[place].number], error) for place, error in refusals.items()]
        rows = [row for place, row in enumerate(rows) if place not in refusals]
        return BatchedBlock(
            block,
            parts,
            rows=[row.number for row in rows],
            keys=[row.keys for row in rows] if self._keys else None,
            rejected=tuple(sorted(rejected, key=lambda one: one.offset)),
        )

    def _parse_record(self, record: bytes) -> Iterator[tuple[Any, Mapping[str, Any]]]:
        """The instances of a record with their keys: none of a blank line, several of a logged request."""
        if _may_be_logged(record) and (logged := _parse_logged_request(record)) is not None:
            for instance in logged:
                yield self._split_keys(instance)
        elif self._raw and not self._keys:
            yield record, {}
        elif record.strip():
            yield self._split_keys(_parse_json(record))

    def _split_keys(self, value: Any) -> tuple[Any, Mapping[str, Any]]:
        if not self._keys:
            return value, {}
        if not isinstance(value, dict):
            raise InvalidInputs(
                f"The record is {describe_json_type(value)}; where keys are asked for it must be an object "
                f"with the fields {list(self._keys)}."
            )
        for key in self._keys:
            if key not in value:
                raise InvalidInputs(f"The record has no field {key!r}, which is a key.")
        rest = {name: field for name, field in value.items() if name not in self._keys}
        instance = rest[_INSTANCE_FIELD] if list(rest) == [_INSTANCE_FIELD] else rest
        return instance, {key: value[key] for key in self._keys}

    def _convert_rows(self, rows: Sequence[_Row]) -> tuple[tuple[Batch, ...], dict[int, InvalidInputs]]:
        """The rows in the model's format, and the errors of those that do not fit, by their place."""
        if not rows:
            return (), {}
        try:
            return (convert_instances([row.instance for row in rows], self._form, lenient=True),), {}
        except InvalidInputs:
            alone, refusals = self._convert_each(rows)
        if not alone:
            return (), refusals
        try:
            fitting = [row.instance for place, row in enumerate(rows) if place not in refusals]
            return (convert_instances(fitting, self._form, lenient=True),), refusals
        except InvalidInputs:
            # Each fits, but their shapes differ.
            groups = itertools.groupby(alone, key=concatenation_key)
            return tuple(concatenate_batches(list(group)) for _, group in groups), refusals

    def _convert_each(self, rows: Sequence[_Row]) -> tuple[list[Batch], dict[int, InvalidInputs]]:
        alone: list[Batch] = []
        refusals: dict[int, InvalidInputs] = {}
        for place, row in enumerate(rows):
            try:
                alone.append(convert_instances([row.instance], self._form, lenient=True))
            except InvalidInputs as error:
                refusals[place] = _without_number(error)
        return alone, refusals


class _Row(NamedTuple):
    """The number of a record in its block, an instance of it, and its key fields."""

    number: int
    instance: Any
    keys: Mapping[str, Any]


def takes_raw_lines(form: InputFormat) -> bool:
    """Whether lines are the model's input as they are: it has one input, which is a string."""
    match form:
        case ColumnsFormat(inputs=(column,)):
            return column.dtype.kind == "O" and column.shape in ((), None)
        case _:
            return False


def _parse_json(record: bytes) -> Any:
    try:
        return orjson.loads(record)
    except orjson.JSONDecodeError as error:
        raise InvalidInputs(f"The record is not valid JSON: {error.msg}.") from error


def _may_be_logged(record: bytes) -> bool:
    return record.startswith(b'{"model":') and b'"raw_data":' in record


def _parse_logged_request(line: bytes) -> list[Any] | None:
    """The instances of the request in a line of the request log; None if it is another line."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if (
        not isinstance(value, dict)
        or value.keys() - _EXTRA_LOGGED_FIELDS != _LOGGED_FIELDS
        or not isinstance(value["raw_data"], str)
    ):
        return None
    body = _parse_json(value["raw_data"].encode())
    if not isinstance(body, dict) or not isinstance(body.get("instances"), list):
        raise InvalidInputs("The logged request has no instances.")
    instances: list[Any] = body["instances"]
    return instances


def _without_number(error: InvalidInputs) -> InvalidInputs:
    """An error of a conversion without the instance's number, which is always 0."""
    return InvalidInputs(
        error.detail.replace("Instance 0", "The instance").replace("instance 0", "the instance")
    )
