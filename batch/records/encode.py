"""Predictions as the lines of result files: JSON, or CSV without its header.

Source: section 4 of the AI Platform contract. Key fields, which are copied to the result and not given to the
model, come before the prediction.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from batch.records.blocks import BatchedBlock, EncodedBlock, RejectedRecord, reject_record
from serving.errors import InvalidOutputs
from serving.runtimes.instance_batch import count_rows, take_rows
from serving.runtimes.json_codec import AnswerStyle, encode_lines

# The name of a prediction without a name in CSV, and beside keys.
_PREDICTION = "prediction"


class LineEncoder:
    """Encodes blocks as JSON or CSV (`output_format`), predictions in the style of online answers."""

    def __init__(self, output_format: str, style: AnswerStyle | None = None) -> None:
        self._csv = output_format == "CSV"
        self._style = style or AnswerStyle()

    def encode(self, predicted: BatchedBlock) -> EncodedBlock:
        """The predictions of a block as text. A prediction that JSON cannot express rejects its record."""
        written = _EncodedParts()
        row = 0
        for part in predicted.parts:
            size = count_rows(part)
            try:
                written.add(encode_lines(part, self._style), size)
            except InvalidOutputs:
                for place in range(size):
                    try:
                        written.add(encode_lines(take_rows(part, slice(place, place + 1)), self._style), 1)
                    except InvalidOutputs as error:
                        written.failures[row + place] = error
            row += size
        results, header = self._finish_lines(written, predicted)
        block = predicted.block
        return EncodedBlock(
            shard=block.shard,
            index=block.index,
            file=block.file,
            results=results,
            predictions=written.lines,
            stored_bytes=block.stored_bytes,
            begun=block.begun,
            last=block.last,
            rejected=tuple(
                sorted((*predicted.rejected, *_list_rejected(written, predicted)), key=lambda one: one.offset)
            ),
            header=header,
        )

    def _finish_lines(self, written: _EncodedParts, predicted: BatchedBlock) -> tuple[bytes, tuple[str, ...]]:
        results = b"".join(written.texts)
        if not self._csv and predicted.keys is None:
            return results, ()
        keys = [one for row, one in enumerate(predicted.keys or ()) if row not in written.failures]
        records = _merge_keys(results, keys)
        if self._csv:
            return _encode_csv(records)
        return b"".join(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE) for record in records), ()


class _EncodedParts:
    def __init__(self) -> None:
        self.texts: list[bytes] = []
        self.lines = 0
        self.failures: dict[int, InvalidOutputs] = {}

    def add(self, text: bytes, lines: int) -> None:
        self.texts.append(text)
        self.lines += lines


def _list_rejected(written: _EncodedParts, predicted: BatchedBlock) -> Iterator[RejectedRecord]:
    if written.failures:
        lines = predicted.block.split_records()
        for row, error in written.failures.items():
            yield reject_record(lines[row if predicted.rows is None else predicted.rows[row]], error)


def _merge_keys(results: bytes, keys: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each prediction as an object, its key fields first."""
    records = []
    for place, line in enumerate(results.splitlines()):
        value = orjson.loads(line)
        outputs = value if isinstance(value, dict) else {_PREDICTION: value}
        passed = keys[place] if keys else {}
        if both := passed.keys() & outputs.keys():
            raise InvalidOutputs(
                f"{min(both)!r} is a key and an output of the model. Give the key another name."
            )
        records.append({**passed, **outputs})
    return records


def _encode_csv(records: Sequence[Mapping[str, Any]]) -> tuple[bytes, tuple[str, ...]]:
    """Rows, and the names of their columns. A list or an object is JSON text in its cell."""
    if not records:
        return b"", ()
    header = tuple(records[0])
    text = _RowBuffer()
    writer = csv.writer(text)
    for record in records:
        if record.keys() != set(header):
            raise InvalidOutputs(
                f"The predictions differ in their outputs: {list(header)} and {list(record)}; CSV has the "
                "same columns in each row. Use outputDataFormat JSON."
            )
        writer.writerow([_format_cell(record[name]) for name in header])
    return "".join(text.rows).encode(), header


class _RowBuffer:
    r"""Takes rows from the csv module, which quotes only such line ends as its own rows have: \r and \n."""

    def __init__(self) -> None:
        self.rows: list[str] = []

    def write(self, row: str) -> None:
        self.rows.append(row.removesuffix("\r\n") + "\n")


def _format_cell(value: Any) -> Any:
    if value is None:
        return ""
    is_plain = isinstance(value, str | int | float) and not isinstance(value, bool)
    return value if is_plain else orjson.dumps(value).decode()
