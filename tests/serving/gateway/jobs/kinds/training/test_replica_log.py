"""The log of a supervisor, as entries of Cloud Logging."""

from __future__ import annotations

import datetime
from pathlib import Path

from serving.gateway.jobs.kinds.training.replica_log import format_time, iter_log_lines, read_last_lines
from training.logs.writer import JobLogWriter

START = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
MICROS = int(START.timestamp()) * 1_000_000


class Clock:
    """Goes on by a second with each look."""

    def __init__(self) -> None:
        self.looks = 0

    def __call__(self) -> datetime.datetime:
        self.looks += 1
        return START + datetime.timedelta(seconds=self.looks)


def write(folder: Path, *lines: tuple[str, str, str], trial: str = "") -> None:
    log = JobLogWriter(folder, 1, 1 << 20, trial, Clock())
    for task, severity, text in lines:
        log.write(task, [(severity, text)])
    log.close()


def test_lines_are_in_order_over_all_replicas(tmp_path: Path) -> None:
    """With their time, severity and task; ids grow with each."""
    write(tmp_path, ("worker-replica-0", "INFO", "a"), ("master-replica-0", "ERROR", "b"),
          ("worker-replica-0", "INFO", "c"))  # fmt: skip

    lines = list(iter_log_lines(tmp_path, 0))

    assert [(line.task, line.severity, line.text) for line in lines] == [
        ("worker-replica-0", "INFO", "a"),
        ("master-replica-0", "ERROR", "b"),
        ("worker-replica-0", "INFO", "c"),
    ]
    assert [line.time - MICROS for line in lines] == [1_000_000, 2_000_000, 3_000_000]
    assert [line.insert_id for line in lines] == sorted(line.insert_id for line in lines)
    assert lines[0].timestamp == format_time(lines[0].time) == "2030-01-01T00:00:01.000000Z"


def test_a_log_is_read_from_a_time_on(tmp_path: Path) -> None:
    write(tmp_path, *(("master-replica-0", "INFO", str(number)) for number in range(5)), trial="3")

    lines = list(iter_log_lines(tmp_path, MICROS + 4_000_000))

    assert [line.text for line in lines] == ["3", "4"]
    assert {line.trial for line in lines} == {"3"}


def test_the_last_lines(tmp_path: Path) -> None:
    """Of all replicas together; none while there is no log."""
    assert read_last_lines(tmp_path / "none", 5) == []
    write(tmp_path, ("worker-replica-0", "INFO", "a"), ("master-replica-0", "INFO", "b"),
          ("worker-replica-0", "INFO", "c"))  # fmt: skip

    assert read_last_lines(tmp_path, 2) == ["master-replica-0: b", "worker-replica-0: c"]
