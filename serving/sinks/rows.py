"""Records as lines and rows."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import orjson

from serving.journal import Kind, Record
from serving.names import VersionName, parse_target


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
        "time": f"{moment(record):%Y-%m-%dT%H:%M:%S.%fZ}",
        "raw_data": record.data.decode(errors="replace"),
        "raw_prediction": record.answer.decode(errors="replace"),
        "groundtruth": None,
        "record_id": record.id,
        "request_id": record.request_id,
    }


def line(record: Record, kind: Kind) -> bytes:
    """A record as JSON, with a newline."""
    if kind is Kind.REQUESTS:
        return orjson.dumps(request_row(record), option=orjson.OPT_APPEND_NEWLINE)
    # The entry is there already; Cloud Logging knows by this field what it has had before.
    return b'%b,"logging.googleapis.com/insertId":"%b"}\n' % (record.data[:-1], record.id.encode())


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
