"""Spark, whose job server is the driver: it ends with the job, and Beam's cancel reaches it."""

from __future__ import annotations

from batch.engines.engine import OpaqueEngine

# What Spark says when it has lost executors, or its master, too often.
_LOST_WORKER = (
    "ExecutorLostFailure",
    "Master removed our application",
    "All masters are unresponsive",
    "FetchFailed",
)


class SparkEngine(OpaqueEngine):
    """Repeats the tasks of lost executors by itself, four times."""

    def __init__(self) -> None:
        super().__init__("Spark")

    def is_worker_lost(self, error: str) -> bool:
        return any(sign in error for sign in _LOST_WORKER)
