from __future__ import annotations

import re
from pathlib import Path

import pytest

from serving.gateway.jobs import job_log
from serving.gateway.jobs.job_log import JobLog


@pytest.fixture
def log(tmp_path: Path) -> JobLog:
    return JobLog(tmp_path / "jobs" / "uid" / "log")


def write(log: JobLog, *lines: str) -> None:
    with log.open() as file:
        file.write("".join(f"{line}\n" for line in lines).encode())


def test_there_need_not_be_a_log(log: JobLog) -> None:
    """Then it has no lines."""
    log.trim()

    assert log.read_tail(5) == []
    assert log.size() == 0


def test_the_last_lines(log: JobLog) -> None:
    """All of them if there are fewer; what is no text is shown as it can be."""
    write(log, "one", "two", "three")
    with log.open() as file:
        file.write(b"caf\xe9")

    assert log.read_tail(2) == ["three", "caf\ufffd"]
    assert log.read_tail(9) == ["one", "two", "three", "caf\ufffd"]


def test_lines_of_any_length(log: JobLog) -> None:
    """A line that is too long to be read whole is left out, or shown in part if it is the only one."""
    write(log, "x" * 100_000, "short", "also short")
    assert log.read_tail(3) == ["short", "also short"]

    write(log, "y" * 100_000)
    (only,) = log.read_tail(1)
    assert set(only) == {"y"}


def test_the_lines_since(log: JobLog) -> None:
    """Those of one process; a log that was cut meanwhile is all new."""
    write(log, "one")
    before = log.size()
    assert log.read_tail(5, since=before) == []

    write(log, "two")
    assert log.read_tail(5, since=before) == ["two"]
    assert log.read_tail(5, since=1000) == ["one", "two"]


def test_words_of_the_server(log: JobLog) -> None:
    """They have a time, and are marked."""
    log.add_note("attempt 2")

    (line,) = log.read_tail(1)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d SERVER attempt 2", line)


def test_a_log_is_cut_while_it_is_written(log: JobLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its beginning, to whole lines, and who writes goes on behind."""
    monkeypatch.setattr(job_log, "_MAX_BYTES", 1000)
    monkeypatch.setattr(job_log, "_TRIMMED_BYTES", 100)
    writer = log.open()
    for number in range(150):
        writer.write(f"line {number}\n".encode())
        writer.flush()
        if number == 139:
            assert log.size() > 1000
            log.trim()
            log.trim()
            assert log.size() < 200
    writer.close()

    first, *rest = log.read_tail(100)
    assert first == "[the beginning was cut off]"
    assert rest == [f"line {number}" for number in range(150 - len(rest), 150)]
    assert len(rest) == 100 // len("line 100\n") + 10
