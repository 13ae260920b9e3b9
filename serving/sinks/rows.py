"""Records as lines and rows."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import msgspec
import orjson

from serving.journal import Kind, Record
from serving.names import VersionName, parse_target
from serving.sinks.entries import Call, Said, access_entry, console_entry, rfc3339


def day(record: Record) -> str:
    """The folder of its day, in UTC; DuckDB, BigQuery and Hive read it as a column."""
    return f"dt={moment(record):%Y-%m-%d}"


def moment(record: Record) -> datetime.datetime:
    """When it was."""
    return datetime.datetime.fromtimestamp(record.time, datetime.UTC)


def runs(records: Iterable[Record], kind: Kind) -> Iterator[tuple[str, list[Record]]]:
    """The records by the folder they belong in, those of one folder in their order."""
    found: dict[str, list[Record]] = {}
    for key, some in groupby(records, key=lambda record: _folder(record, kind)):
        found.setdefault(key, []).extend(some)
    yield from found.items()


def request_row(record: Record) -> dict[str, Any]:
    """The columns of the contract's table (section 3.7), and two of ours."""
    name = version_of(record)
    return {
        "model": name.model,
        "model_version": name.version,
        "time": rfc3339(record.time),
        "raw_data": record.data.decode(errors="replace"),
        "raw_prediction": record.answer.decode(errors="replace"),
        "groundtruth": None,
        "record_id": record.id,
        "request_id": record.request_id,
    }


def line(record: Record, kind: Kind) -> bytes:
    """A record as JSON, with a newline."""
    return orjson.dumps(_entry(record, kind), option=orjson.OPT_APPEND_NEWLINE)


def readable_line(record: Record, kind: Kind) -> bytes:
    """The same for a file that the server itself reads, to those who may: it says whose request it was."""
    entry = _entry(record, kind)
    if kind is Kind.REQUESTS:
        entry["project"] = version_of(record).project
    return orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE)


def _entry(record: Record, kind: Kind) -> dict[str, Any]:
    match kind:
        case Kind.REQUESTS:
            return request_row(record)
        case Kind.ACCESS:
            call = msgspec.json.decode(record.data, type=Call)
            entry = access_entry(call, version_of(record), record.time)
        case Kind.CONSOLE:
            said = msgspec.json.decode(record.data, type=Said)
            entry = console_entry(said, version_of(record), record.time)
    # Cloud Logging knows by it what it has had before.
    return {**entry, "logging.googleapis.com/insertId": record.id}


def version_of(record: Record) -> VersionName:
    """The version it is about."""
    name = parse_target(record.name)
    if not isinstance(name, VersionName):
        raise TypeError(f"{record.name} names no version")
    return name


def _folder(record: Record, kind: Kind) -> str:
    if kind is Kind.REQUESTS:
        return day(record)
    name = version_of(record)
    return f"{name.project}/{name.model}/{name.version}/{day(record)}"
