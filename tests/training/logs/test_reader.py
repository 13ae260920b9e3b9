"""Reading the log of a job, by pages and while it grows."""

from __future__ import annotations

import datetime
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from training.logs.reader import LogPosition, LogQuery, position_of, read_entries
from training.logs.writer import SEGMENT_BYTES, JobLogWriter

WORKER, MASTER = "worker-replica-0", "master-replica-0"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[JobLogWriter]:
    """A log whose clock goes on by a second for each write."""
    log = JobLogWriter(tmp_path, 1, 6 * SEGMENT_BYTES, read_clock=every_second())
    yield log
    log.close()


def every_second() -> Callable[[], datetime.datetime]:
    begin = datetime.datetime(2026, 1, 31, tzinfo=datetime.UTC)
    return (begin + datetime.timedelta(seconds=second) for second in itertools.count()).__next__


def texts(folder: Path, **query: object) -> list[str]:
    return [entry.text for entry in read_entries(folder, LogQuery(**query))]  # type: ignore[arg-type]


def test_what_no_writer_has_left_so_is_skipped(tmp_path: Path, log: JobLogWriter) -> None:
    log.write(MASTER, [("INFO", "a")])
    (segment,) = tmp_path.iterdir()
    with segment.open("ab") as file:
        file.write(b'{"time":"20\\0\\0\n{}\n\xff\n')
    log.write(MASTER, [("INFO", "b")])
    os.mkfifo(tmp_path / "0.pipe.1.000000.jsonl")
    (tmp_path / "0.folder.1.000000.jsonl").mkdir()
    (tmp_path / "0.link.1.000000.jsonl").symlink_to(segment)

    assert texts(tmp_path) == ["a", "b"]


def test_entries_of_all_tasks_come_in_order(tmp_path: Path, log: JobLogWriter) -> None:
    log.write(WORKER, [("INFO", "a"), ("INFO", "b")])
    log.write(MASTER, [("INFO", "c")])
    log.write(WORKER, [("INFO", "d")])

    assert texts(tmp_path) == ["a", "b", "c", "d"]
    assert texts(tmp_path, task=MASTER) == ["c"]
    assert texts(tmp_path, trial="3") == []
    assert texts(tmp_path, until="2026-01-31T00:00:01.000000Z") == ["a", "b"]
    assert texts(tmp_path / "none") == []


def test_a_follower_sees_each_entry_once(tmp_path: Path, log: JobLogWriter) -> None:
    after, seen = LogPosition(), []
    for number in range(30):
        task = MASTER if number % 3 else WORKER
        log.write(task, [("INFO", f"{number} {part}") for part in "ab"])
        while entries := read_entries(tmp_path, LogQuery(after=after, limit=3)):
            seen += [entry.text for entry in entries]
            after = position_of(entries[-1])

    assert seen == [f"{number} {part}" for number in range(30) for part in "ab"]


def test_a_hole_is_shown_once(tmp_path: Path, log: JobLogWriter) -> None:
    for number in range(300):
        log.write(MASTER, [("INFO", f"{number} {'x' * 50_000}")])
    after, numbers = LogPosition(), []
    while entries := read_entries(tmp_path, LogQuery(after=after, limit=10)):
        numbers += [entry.text.split()[0] for entry in entries]
        after = position_of(entries[-1])

    assert numbers.count("[the") == 1
    hole = numbers.index("[the")
    assert numbers[:hole] == [str(number) for number in range(hole)]
    rest = [int(number) for number in numbers[hole + 1 :]]
    assert rest == list(range(rest[0], 300))
    assert rest[0] > hole + 100


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path, log: JobLogWriter) -> None:
    log.write(MASTER, [("INFO", "whole")])
    with next(tmp_path.iterdir()).open("ab") as file:
        file.write(b'{"time":"2026-')

    assert texts(tmp_path) == ["whole"]
