"""The log of a job on disk."""

from __future__ import annotations

import datetime
import itertools
import resource
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from training.logs.entries import LogEntry, Segment, list_segments
from training.logs.writer import SEGMENT_BYTES, JobLogWriter, append_service_line, choose_dropped

LINE = "x" * 1000


def read(folder: Path, task: str) -> list[LogEntry]:
    files = [folder / segment.file_name for segment in list_segments(folder) if segment.task == task]
    lines = itertools.chain.from_iterable(file.read_bytes().splitlines() for file in files)
    return [msgspec.json.decode(line, type=LogEntry) for line in lines]


def test_entries_have_times_and_growing_ids(tmp_path: Path) -> None:
    moments = iter([datetime.datetime(2026, 1, 31, 12, 0, second, tzinfo=datetime.UTC) for second in (5, 4)])
    log = JobLogWriter(tmp_path, 2, 1 << 30, trial="3", read_clock=lambda: next(moments))
    log.write("master-replica-0", [("INFO", "one"), ("ERROR", "two")])
    log.write("worker-replica-0", [("INFO", "three")])
    log.close()

    first, second = read(tmp_path, "master-replica-0")
    (third,) = read(tmp_path, "worker-replica-0")
    assert first == LogEntry(
        "2026-01-31T12:00:05.000000Z", "00020000000000100003", "INFO", "master-replica-0", "one", "3"
    )
    assert third.time == first.time  # the clock went back, the log does not
    assert first.id < second.id < third.id
    assert list_segments(tmp_path)[0] == Segment(3, "master-replica-0", 2, 0)


def test_over_the_limit_the_middle_goes(tmp_path: Path) -> None:
    most = 6 * SEGMENT_BYTES
    log = JobLogWriter(tmp_path, 1, most)
    log.write("worker-replica-0", [("INFO", "short")])
    for number in range(20_000):
        log.write("master-replica-0", [("INFO", f"{number} {LINE}")])
    log.close()
    numbers = [int(entry.text.split()[0]) for entry in read(tmp_path, "master-replica-0")]

    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= most + SEGMENT_BYTES
    assert [numbers[0], numbers[-1]] == [0, 19_999]
    assert numbers == sorted(numbers)
    gaps = [first for first, second in itertools.pairwise(numbers) if second != first + 1]
    assert len(gaps) == 1  # one hole, behind the first segment
    assert gaps[0] * 1000 < 2 * SEGMENT_BYTES
    assert [entry.text for entry in read(tmp_path, "worker-replica-0")] == ["short"]


def test_lines_of_the_server_stand_among_those_of_attempts(tmp_path: Path) -> None:
    append_service_line(tmp_path, "attempt 1 was lost\nit is tried again")
    append_service_line(tmp_path, "the job was cancelled", "WARNING")

    assert [entry.text for entry in read(tmp_path, "service")] == [
        "attempt 1 was lost",
        "it is tried again",
        "the job was cancelled",
    ]
    assert len(list_segments(tmp_path)) == 1


def test_ends_are_never_dropped() -> None:
    def segments(*numbers: int) -> list[Segment]:
        return [Segment(0, "a", 1, number) for number in numbers]

    assert choose_dropped(segments(0, 1, 2)) is None
    assert choose_dropped(segments(0, 1, 2, 3)) == Segment(0, "a", 1, 1)
    assert choose_dropped([*segments(0, 5, 6, 7), Segment(0, "b", 1, 0)]) == Segment(0, "a", 1, 5)


def test_logs_of_the_first_trials_go_where_nothing_else_can(tmp_path: Path) -> None:
    job = JobLogWriter(tmp_path, 1, 3500)
    job.write("service", [("INFO", "kept")])
    for number in range(1, 7):
        trial = JobLogWriter(tmp_path, 1, 1 << 20, trial=str(number))
        trial.write("master-replica-0", [("INFO", LINE)])
        trial.close()
        job.add_trial_bytes(trial.size)

    assert {segment.trial for segment in list_segments(tmp_path)} == {0, 5, 6}


def test_an_entry_of_one_trial_has_never_the_id_of_another(tmp_path: Path) -> None:
    moment = datetime.datetime(2026, 1, 31, tzinfo=datetime.UTC)
    for number in ("1", "2"):
        log = JobLogWriter(tmp_path, 1, 1 << 20, trial=number, read_clock=lambda: moment)
        log.write("master-replica-0", [("INFO", "one")])
        log.close()

    assert len({entry.id for entry in read(tmp_path, "master-replica-0")}) == 2


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file may grow beyond 10 KiB, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10 << 10, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_lines_lost_to_a_full_disk_are_counted(tmp_path: Path, small_files: None) -> None:
    log = JobLogWriter(tmp_path, 1, 1 << 30)
    for number in range(15):
        log.write("master-replica-0", [("INFO", f"{number} {LINE}")])
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    log.write("master-replica-0", [("INFO", "again")])
    log.close()
    texts = [entry.text for entry in read(tmp_path, "master-replica-0")]

    written = len(texts) - 2
    assert 5 < written < 10
    assert texts[-2:] == [f"{15 - written} lines before this one could not be written.", "again"]
