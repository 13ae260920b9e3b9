"""Filters of log entries as gcloud's log fetcher sends them."""

from __future__ import annotations

import pytest

from serving.errors import InvalidArgument
from serving.gateway.jobs.log_filter import LogFilter
from serving.gateway.jobs.log_lines import JobLogLine, parse_log_lines

# As gcloud writes it once it has seen an entry.
BEHIND = (
    '((timestamp="2026-01-01T00:00:00.000000Z" AND insertId>"{}") OR timestamp>"2026-01-01T00:00:00.000000Z")'
)
TIME = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z
LINE = JobLogLine(TIME, 3, "WARNING", "worker", "slow disk")
FIXED = {"resource.type": "ml_job", "resource.labels.job_id": "j"}
JOB = '(resource.type="ml_job" OR resource.type="cloudml_job") AND resource.labels.job_id="j"'


@pytest.mark.parametrize(
    ("rest", "wanted"),
    [
        ("", True),
        ('AND timestamp>="1970-01-01T01:00:00.000000000Z"', True),
        ('AND timestamp<"2026-01-01T00:00:00.000001+00:00"', True),
        ('AND timestamp<"2026-01-01T00:00:00Z"', False),
        ('AND timestamp<"2026-01-01T02:00:00.000000+02:00"', False),
        ("AND " + BEHIND.format("00000000000000000002"), True),
        ("AND " + BEHIND.format("00000000000000000003"), False),
        ('AND (resource.labels.task_name="worker" OR labels.task_name="worker")', True),
        ('AND (resource.labels.task_name="service" OR labels.task_name="service")', False),
        ("AND severity>=WARNING", True),
        ("AND severity>=ERROR", False),
        ("AND NOT severity=WARNING", False),
        ('AND textPayload:"DISK"', True),
        ('AND resource.type="cloudml_model_version"', False),
    ],
)  # fmt: skip
def test_a_line_is_meant(rest: str, wanted: bool) -> None:
    """By its time, its place, its severity, its task and its text."""
    chosen = LogFilter.from_text(f"{JOB} {rest}")

    assert chosen.job == "j"
    assert chosen.build_matcher(FIXED)(LINE) == wanted


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "whose log"),
        ('resource.type="ml_job"', "whose log"),
        ('resource.labels.job_id="a" OR resource.labels.job_id="b"', "whose log"),
        ('NOT resource.labels.job_id="a"', "whose log"),
        ('resource.labels.job_id="a" resource.labels.job_id="b"', "whose log"),
        ('resource.labels.job_id="a" OR severity>=ERROR', "whose log"),
        (JOB + ' AND timestamp>"yesterday"', "no time"),
        (JOB + ' AND timestamp>"9999-99-99T00:00:00Z"', "no time"),
        (JOB + ' AND timestamp>"9999-12-31T23:59:59-14:00"', "no time"),
        (JOB + " AND severity>LOUD", "severity"),
        (JOB + " AND (", "Cannot read"),
        (JOB + " AND a=b" * 300, "over 200 parts"),
        (f'{JOB} AND textPayload:"{"a" * 20_000}"', "may have 20000"),
    ],
)
def test_what_is_no_filter_of_one_job_is_refused(text: str, says: str) -> None:
    """Nobody reads the log of a job that a filter does not name: who may see it is asked by that name."""
    with pytest.raises(InvalidArgument, match=says):
        LogFilter.from_text(text)


def test_lines_have_times_that_do_not_go_back() -> None:
    """What begins with no time belongs to the line before; ids tell those of one time apart."""
    text = (
        "odd\n2026-01-01 00:00:00 SERVER attempt 2\n2026-01-01 00:00:01,250 ERROR failed\nTraceback\n"
        "2026-01-01 00:00:00,000 INFO again\n"
    )

    lines = list(parse_log_lines(text, TIME - 1))

    assert [line.text for line in lines] == ["odd", "attempt 2", "failed", "Traceback", "again"]
    assert [line.severity for line in lines] == ["DEFAULT", "INFO", "ERROR", "ERROR", "INFO"]
    assert [line.task for line in lines] == ["worker", "service", *["worker"] * 3]
    assert [int(line.insert_id) for line in lines] == [0, 0, 0, 1, 2]
    assert lines == sorted(lines, key=lambda line: (line.time, line.number))
    assert [line.time - lines[1].time for line in lines[2:]] == [1_250_000] * 3


def test_of_a_log_of_many_lines_the_last_ones_are_read() -> None:
    """However lines end: they are as many as whoever submitted the job likes."""
    begun = "2026-01-01 00:00:00 SERVER begun\n"
    for end in ("\n", "\r", "\r\n"):
        lines = list(parse_log_lines(begun + f"a{end}" * 199_999, 0))
        assert (len(lines), lines[0].text, lines[-1].text) == (200_000, "begun", "a")
        lines = list(parse_log_lines(begun + f"a{end}" * 200_001, 0))
        assert (len(lines), lines[0].text) == (200_000, "a")


@pytest.mark.parametrize(
    ("rest", "earliest"),
    [
        ("", 0),
        ('AND timestamp>="2026-01-01T00:00:00Z"', TIME),
        ("AND " + BEHIND.format("1"), TIME),
        ('AND (timestamp>"2026-01-01T00:00:00Z" OR textPayload:x)', 0),
        ('AND timestamp<"2026-01-01T00:00:00Z"', 0),
        ('AND NOT timestamp>"2026-01-01T00:00:00Z"', 0),
    ],
)
def test_from_when_on_a_log_is_read(rest: str, earliest: int) -> None:
    """As late as the filter allows, so that who follows a log does not have all of it read each time."""
    assert LogFilter.from_text(f"{JOB} {rest}").earliest_time == earliest
