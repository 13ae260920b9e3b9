"""Encodes records as lines and rows."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import msgspec
import orjson

from serving.logs.journal import JournalRecord, LogKind
from serving.logs.sinks.cloud_logging_entries import (
    AccessRecord,
    ConsoleLine,
    format_rfc3339,
    make_access_entry,
    make_console_entry,
)
from serving.names import VersionName, parse_model_or_version_name


def day_folder(record: JournalRecord) -> str:
    """The folder of the record's day (UTC), named so that DuckDB, BigQuery and Hive read it as a column."""
    return f"dt={record_time(record):%Y-%m-%d}"


def record_time(record: JournalRecord) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(record.time, datetime.UTC)


def group_by_folder(
    records: Iterable[JournalRecord], kind: LogKind
) -> Iterator[tuple[str, list[JournalRecord]]]:
    """Records by folder, in their order within each."""
    found: dict[str, list[JournalRecord]] = {}
    for key, some in groupby(records, key=lambda record: _folder_of_record(record, kind)):
        found.setdefault(key, []).extend(some)
    yield from found.items()


def make_request_row(record: JournalRecord) -> dict[str, Any]:
    """The columns of the contract's table (section 3.7), and two of our own."""
    name = parse_version_name(record)
    return {
        "model": name.model,
        "model_version": name.version,
        "time": format_rfc3339(record.time),
        "raw_data": record.data.decode(errors="replace"),
        "raw_prediction": record.answer.decode(errors="replace"),
        "groundtruth": None,
        "record_id": record.id,
        "request_id": record.request_id,
    }


def encode_line(record: JournalRecord, kind: LogKind) -> bytes:
    """A record as a JSON line."""
    return orjson.dumps(_make_entry(record, kind), option=orjson.OPT_APPEND_NEWLINE)


def encode_line_with_project(record: JournalRecord, kind: LogKind) -> bytes:
    """The same with the project, for files that the server reads to check who may see a record."""
    entry = _make_entry(record, kind)
    if kind is LogKind.REQUESTS:
        entry["project"] = parse_version_name(record).project
    return orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE)


def _make_entry(record: JournalRecord, kind: LogKind) -> dict[str, Any]:
    match kind:
        case LogKind.REQUESTS:
            return make_request_row(record)
        case LogKind.ACCESS:
            call = msgspec.json.decode(record.data, type=AccessRecord)
            entry = make_access_entry(call, parse_version_name(record), record.time)
        case LogKind.CONSOLE:
            said = msgspec.json.decode(record.data, type=ConsoleLine)
            entry = make_console_entry(said, parse_version_name(record), record.time)
    # Cloud Logging knows by it what it has had before.
    return {**entry, "logging.googleapis.com/insertId": record.id}


def parse_version_name(record: JournalRecord) -> VersionName:
    name = parse_model_or_version_name(record.name)
    if not isinstance(name, VersionName):
        raise TypeError(f"{record.name} names no version")
    return name


def _folder_of_record(record: JournalRecord, kind: LogKind) -> str:
    if kind is LogKind.REQUESTS:
        return day_folder(record)
    name = parse_version_name(record)
    return f"{name.project}/{name.model}/{name.version}/{day_folder(record)}"
