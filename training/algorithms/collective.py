"""XGBoost's collective operations among the replicas of a job."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Thread

import xgboost
from xgboost.tracker import RabitTracker

# Seconds for all replicas to have joined.
_JOIN_SECONDS = 300


@dataclass(frozen=True, slots=True)
class ClusterPosition:
    """Which of how many replicas this is, and where the first of them listens."""

    rank: int = 0
    size: int = 1
    host: str = ""
    port: int = 0

    @classmethod
    def of_this_process(cls) -> ClusterPosition:
        """As the supervisor's variables say; alone where there are none."""
        variables = os.environ
        return cls(
            int(variables.get("RANK", "0")),
            int(variables.get("WORLD_SIZE", "1")),
            variables.get("MASTER_ADDR", ""),
            int(variables.get("MASTER_PORT", "0")),
        )


@contextlib.contextmanager
def join_cluster(position: ClusterPosition) -> Iterator[None]:
    """Take part in collective operations; the first replica runs the tracker, the others wait for it."""
    if position.size == 1:
        yield
        return
    tracker = None
    if position.rank == 0:
        tracker = RabitTracker(
            host_ip=position.host, port=position.port, n_workers=position.size, sortby="task"
        )
        tracker.start()
        Thread(target=tracker.wait_for, daemon=True).start()
    with xgboost.collective.CommunicatorContext(
        dmlc_tracker_uri=position.host,
        dmlc_tracker_port=position.port,
        dmlc_task_id=f"{position.rank:08d}",  # in the order of ranks
        dmlc_retry=_JOIN_SECONDS,
    ):
        yield
