from __future__ import annotations

import pytest

from batch.messages import JobCounts
from serving.gateway.jobs.kinds.prediction.prediction_kind import PredictionProgress


def at(records: int, total: int = 1000) -> JobCounts:
    """A tenth of the records is bad, and a record has ten bytes."""
    return JobCounts(records - records // 10, records // 10, records * 10, total * 10, 2)


def test_nothing_is_known_at_first() -> None:
    """A rate takes two moments."""
    assert not PredictionProgress().has_counts
    progress = PredictionProgress()
    progress.add_counts(at(50), 1.0)

    assert progress.has_counts
    assert (progress.records_per_second, progress.seconds_left) == (None, None)
    progress.add_counts(at(60), 1.0)
    assert progress.records_per_second is None


def test_a_rate_is_that_of_late() -> None:
    """About ten seconds, however long it has run; what is left is told from the bytes."""
    progress = PredictionProgress()
    for second in range(100):
        progress.add_counts(at(second), float(second))
    for second in range(100, 115):
        progress.add_counts(at(99 + (second - 99) * 20), float(second))

    assert progress.records_per_second == pytest.approx(20)
    assert progress.seconds_left == pytest.approx((1000 - 399) / 20)


def test_a_job_that_stands_still() -> None:
    """Its rate is 0, and nobody knows how long it will take."""
    progress = PredictionProgress()
    progress.add_counts(at(50), 0.0)
    progress.add_counts(at(50), 20.0)

    assert progress.records_per_second == 0
    assert progress.seconds_left is None


def test_a_job_that_has_read_everything() -> None:
    """No time is left, also when there was more than it had been told."""
    progress = PredictionProgress()
    progress.add_counts(at(500), 0.0)
    progress.add_counts(at(1100), 1.0)

    assert progress.seconds_left == 0
