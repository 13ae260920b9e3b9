"""What is known of Spark."""

from __future__ import annotations

from batch.engines.spark import SparkEngine


def test_lost_executors_are_worth_another_attempt() -> None:
    """An error of a step is not."""
    lost = (
        "Job aborted due to stage failure: ExecutorLostFailure (executor 1 exited caused by one of the tasks)"
    )

    assert SparkEngine().is_worker_lost(lost)
    assert not SparkEngine().is_worker_lost("java.lang.IllegalStateException: no")
