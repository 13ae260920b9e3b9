"""What follows from the end of a replica."""

from __future__ import annotations

import pytest

from training.cluster import Replica
from training.messages import ReplicaRole, RestartLimits
from training.replicas.restart_policy import Action, RestartHistory, decide_after_exit

MASTER = Replica(ReplicaRole.MASTER, 0)
WORKER = Replica(ReplicaRole.WORKER, 0)
LIMITS = RestartLimits(in_place=2, whole_job=1)
USED_UP = RestartHistory(in_place={MASTER: 2, WORKER: 2})
# Another replica was lost 30 and 90 seconds ago.
JUST_LOST, LOST_LONG_AGO = RestartHistory(lost={WORKER: 70.0}), RestartHistory(lost={WORKER: 10.0})


@pytest.mark.parametrize(
    ("replica", "exit_code", "history", "expected"),
    [
        (MASTER, 0, RestartHistory(), Action.SUCCEED),
        (WORKER, 0, RestartHistory(), Action.GO_ON),
        (MASTER, 1, RestartHistory(), Action.FAIL),
        (WORKER, 1, RestartHistory(), Action.FAIL),
        (WORKER, 2, RestartHistory(), Action.FAIL),
        (WORKER, 127, RestartHistory(), Action.FAIL),
        (WORKER, -9, RestartHistory(), Action.RESTART_REPLICA),
        (WORKER, 137, RestartHistory(), Action.RESTART_REPLICA),
        (MASTER, 143, RestartHistory(), Action.RESTART_REPLICA),
        (MASTER, 128, RestartHistory(), Action.FAIL),
        (MASTER, 255, RestartHistory(), Action.FAIL),
        (MASTER, 255, JUST_LOST, Action.RESTART_REPLICA),
        (WORKER, -9, USED_UP, Action.RESTART_JOB),
        (WORKER, -9, RestartHistory(USED_UP.in_place, whole_job=1), Action.FAIL),
        (MASTER, 1, JUST_LOST, Action.RESTART_REPLICA),
        (MASTER, 2, JUST_LOST, Action.FAIL),
        (MASTER, 1, LOST_LONG_AGO, Action.FAIL),
        (WORKER, 1, JUST_LOST, Action.FAIL),
    ],
)
def test_decision(replica: Replica, exit_code: int, history: RestartHistory, expected: Action) -> None:
    assert decide_after_exit(replica, exit_code, history, LIMITS, now=100.0) is expected


def test_an_error_is_retriable_where_the_job_says_so() -> None:
    limits = RestartLimits(restart_on_error=True)

    assert decide_after_exit(MASTER, 1, RestartHistory(), limits, 0.0) is Action.RESTART_REPLICA
    assert decide_after_exit(MASTER, 255, RestartHistory(), limits, 0.0) is Action.RESTART_REPLICA
    assert decide_after_exit(MASTER, 2, RestartHistory(), limits, 0.0) is Action.FAIL


def test_a_restart_of_the_job_gives_each_replica_its_own_again() -> None:
    history = USED_UP.add_job_restart()

    assert decide_after_exit(WORKER, -9, history, LIMITS, 0.0) is Action.RESTART_REPLICA
    assert history.whole_job == 1
