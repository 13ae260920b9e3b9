"""How far a batch prediction is, in words."""

from __future__ import annotations

import pytest

from batch.messages import JobCounts, JobPhase, JobReport
from serving.cli.local.local_batch import ProgressEstimator
from serving.cli.progress.job_progress import ProgressSnapshot, find_new_lines, open_progress_display


def test_a_standing_in_words() -> None:
    """What is not known is not told."""
    full = ProgressSnapshot("RUNNING", 119_997, 3, 1, 2, 24_000.4, 75.0)

    assert str(full) == "RUNNING: 120,000 records, 24,000 records/s, 3 errors, 1m15s left"
    assert str(ProgressSnapshot("QUEUED")) == "QUEUED"


def test_a_meter_reads_reports() -> None:
    """Rate and time left count from where records begin to be read."""
    meter = ProgressEstimator()
    starting = meter.update(JobReport(phase=JobPhase.PREPARING), 100.0)
    meter.update(JobReport(phase=JobPhase.RUNNING), 103.0)
    running = meter.update(JobReport(counts=JobCounts(90, 10, bytes=1000, bytes_total=5000)), 105.0)
    publishing = meter.update(JobReport(phase=JobPhase.PUBLISHING), 106.0)

    assert starting == ProgressSnapshot("PREPARING")
    assert running == ProgressSnapshot("RUNNING", 90, 10, 1000, 5000, rate=50.0, seconds_left=8.0)
    assert publishing.state == "PUBLISHING"
    assert publishing.predictions == 90


def test_counts_that_say_nothing_yet() -> None:
    """There is no time left before something was read."""
    meter = ProgressEstimator()
    meter.update(JobReport(phase=JobPhase.RUNNING), 1.0)

    assert meter.update(JobReport(counts=JobCounts(bytes_total=10)), 3.0).seconds_left is None


@pytest.mark.parametrize(
    ("before", "after", "new"),
    [
        ([], [], []),
        ([], ["a"], ["a"]),
        (["a"], ["a"], []),
        (["a"], ["a", "b", "c"], ["b", "c"]),
        (["a", "b", "c"], ["b", "c", "d"], ["d"]),
        (["a", "b"], ["x", "y"], ["x", "y"]),
        (["a", "a"], ["a", "a"], []),
    ],
)
def test_what_a_log_has_got(before: list[str], after: list[str], new: list[str]) -> None:
    """Its last lines move on; each line is told once."""
    assert find_new_lines(before, after) == new


def test_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each new state, and for new numbers only now and then; the log as it comes."""
    with open_progress_display("Job monday") as shown:
        shown.show(ProgressSnapshot("QUEUED"))
        shown.show(ProgressSnapshot("QUEUED"))
        shown.show(ProgressSnapshot("RUNNING"))
        shown.show(ProgressSnapshot("RUNNING", 10))
        shown.log("a line")
        shown.show(ProgressSnapshot("SUCCEEDED", 20))

    assert capsys.readouterr().err.splitlines() == [
        "Job monday ...",
        "QUEUED",
        "RUNNING",
        "a line",
        "SUCCEEDED: 20 records",
    ]
