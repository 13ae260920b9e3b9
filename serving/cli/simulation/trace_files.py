"""Reads and writes the traces of `pilotlight simulate`."""

from __future__ import annotations

import csv
import datetime
import json
import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from autoscaler.simulation.traces import GENERATED, LoadProfile, TrafficTrace, build_trace, generate_trace
from serving.errors import InvalidArgument

_SECOND, _REQUESTS, _VERSION = "second", "requests", "version"

# A line of a file with its number, for messages.
_CsvRow = tuple[int, dict[str, str | None]]


def load_traces(name: str, seed: int) -> list[TrafficTrace]:
    """The generated trace of this name, else those of the file or folder, one per version.

    Raises InvalidArgument with the file and line at fault.
    """
    if name in GENERATED:
        return [generate_trace(name, seed)]
    path = Path(name).expanduser()
    if not path.exists():
        known = ", ".join(GENERATED)
        raise InvalidArgument(f"There is no file {name}, and no such trace; there are: {known}.")
    files = sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]
    try:
        traces = _read_log(files) if path.is_dir() or _is_log(path) else _read_csv(path, seed)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidArgument(f"Cannot read {path}: {error}") from error
    if not any(trace.moments for trace in traces):
        raise InvalidArgument(f"{path}: there is no request in it.")
    return traces


def write_traces(path: Path, traces: Sequence[TrafficTrace]) -> None:
    """Save the load as CSV, which `load_traces` can read. Raises InvalidArgument when that cannot be done."""
    several = len(traces) > 1
    rows = sorted(
        (second, number, requests)
        for number, trace in enumerate(traces)
        for second, requests in _pad_load(trace)
    )
    try:
        with path.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow([_SECOND, _REQUESTS, *([_VERSION] if several else [])])
            for second, number, requests in rows:
                writer.writerow([second, requests, *([traces[number].key] if several else [])])
    except OSError as error:
        raise InvalidArgument(f"Cannot write {path}: {error}") from error


def _pad_load(trace: TrafficTrace) -> Iterable[tuple[int, int]]:
    """Requests per second, the first and the last second also when there are none in them."""
    last = max(0, math.ceil(trace.length) - 1)
    return ({0: 0, last: 0} | trace.count_by_second()).items()


# ---- requests per second


def _read_csv(path: Path, seed: int) -> list[TrafficTrace]:
    loads: dict[str, list[tuple[int, int]]] = {}
    for number, row in _read_rows(path):
        where = f"{path}, line {number}"
        second, requests = _parse_number(where, row, _SECOND), _parse_number(where, row, _REQUESTS)
        version = row.get(_VERSION, path.stem)
        if not version:
            raise InvalidArgument(f"{where}: the version is missing.")
        load = loads.setdefault(version, [])
        if load and second <= load[-1][0]:
            raise InvalidArgument(
                f"{where}: second {second} comes after second {load[-1][0]}; the seconds must ascend."
            )
        load.append((second, requests))
    if not loads:
        raise InvalidArgument(f"{path}: there are no rows in it.")
    return _build_traces(loads, seed)


def _read_rows(path: Path) -> Iterator[_CsvRow]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        columns = [column.strip() for column in reader.fieldnames or ()]
        missing = [column for column in (_SECOND, _REQUESTS) if column not in columns]
        if missing:
            raise InvalidArgument(
                f"{path}, line 1: the heading must name the columns {_SECOND} and {_REQUESTS}, and may name "
                f"{_VERSION}; it is {','.join(columns)!r}."
            )
        reader.fieldnames = columns
        for row in reader:
            yield reader.line_num, row


def _parse_number(where: str, row: dict[str, str | None], column: str) -> int:
    text = row[column]
    try:
        number = int(text or "")
    except ValueError:
        number = -1
    if number < 0:
        raise InvalidArgument(f"{where}: {column} must be a whole number, 0 or more; it is {text or ''!r}.")
    return number


def _build_traces(loads: dict[str, list[tuple[int, int]]], seed: int) -> list[TrafficTrace]:
    first = min(load[0][0] for load in loads.values())
    seconds = max(load[-1][0] for load in loads.values()) + 1 - first
    traces = []
    for number, (version, load) in enumerate(loads.items()):
        moved: LoadProfile = [(second - first, requests) for second, requests in load]
        traces.append(build_trace(version, moved, seconds, f"{seed} {number}"))
    return traces


# ---- the server's access log


def _is_log(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(64).lstrip().startswith(b"{")


def _read_log(files: Iterable[Path]) -> list[TrafficTrace]:
    """One line per request, in any order: onlinePredictionLogging writes it when the answer has gone."""
    times: dict[str, array[float]] = {}
    for path in files:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    version, moment = _parse_access_log_line(f"{path}, line {number}", line)
                    times.setdefault(version, array("d")).append(moment)
    if not times:
        return []
    first = math.floor(min(min(moments) for moments in times.values()))
    seconds = math.floor(max(max(moments) for moments in times.values())) + 1 - first
    return [
        TrafficTrace(version, array("d", sorted(moment - first for moment in moments)), seconds)
        for version, moments in sorted(times.items())
    ]


def _parse_access_log_line(where: str, line: bytes) -> tuple[str, float]:
    """The version that a line of the log is about, and when the request came, in seconds since the epoch."""
    try:
        entry: Any = orjson.loads(line)
        moment = datetime.datetime.fromisoformat(entry["time"])
        version = f"{entry['model']}/{entry['model_version']}"
    except json.JSONDecodeError as error:
        raise InvalidArgument(f"{where}: it is no JSON: {error}") from error
    except KeyError as error:
        raise InvalidArgument(f"{where}: the field {error} is missing.") from error
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{where}: it is no line of an access log: {error}") from error
    if moment.tzinfo is None:
        raise InvalidArgument(f"{where}: the time {entry['time']!r} does not say in which zone.")
    return version, moment.timestamp()
