"""What follows from the end of a replica: a pure function."""

from __future__ import annotations

import enum
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field

from training.cluster import Replica
from training.messages import ReplicaRole, RestartLimits

# Seconds after the end of a replica by no fault of its own, within which others fail because of it.
_CONSEQUENCE_SECONDS = 60.0
# A shell ends with this and the number of the signal that has ended its program; containers do too.
_SIGNAL_BASE = 128
_KILLED_CODE = _SIGNAL_BASE + signal.SIGKILL
# What a program ends with for an error: an exception, a text for sys.exit(); sys.exit(-1).
_ERROR_CODES = frozenset({1, 255})
_MEMORY_HINT = " It may have run out of memory."


class Action(enum.Enum):
    GO_ON = "go on without it"
    SUCCEED = "the job succeeded"
    RESTART_REPLICA = "start the replica again"
    RESTART_JOB = "start all replicas again"
    FAIL = "the job failed"


@dataclass(frozen=True, slots=True)
class RestartHistory:
    """Starts of replicas after their first since the job was last started as a whole, and starts of the job.

    `lost` has the time at which each replica was last lost.
    """

    in_place: Mapping[Replica, int] = field(default_factory=dict)
    whole_job: int = 0
    lost: Mapping[Replica, float] = field(default_factory=dict)

    def add_restart(self, replica: Replica) -> RestartHistory:
        counts = {**self.in_place, replica: self.in_place.get(replica, 0) + 1}
        return RestartHistory(counts, self.whole_job, self.lost)

    def add_job_restart(self) -> RestartHistory:
        return RestartHistory({}, self.whole_job + 1, {})

    def add_loss(self, replica: Replica, now: float) -> RestartHistory:
        return RestartHistory(self.in_place, self.whole_job, {**self.lost, replica: now})


def decide_after_exit(
    replica: Replica, exit_code: int, history: RestartHistory, limits: RestartLimits, now: float
) -> Action:
    """`exit_code` is minus the signal's number if one ended the replica; `now` is in seconds.

    The master's success is the job's. Another replica that has exited with 0 has done its part.
    """
    if exit_code == 0:
        return Action.SUCCEED if replica.role is ReplicaRole.MASTER else Action.GO_ON
    if not is_retriable(replica, exit_code, history, limits, now):
        return Action.FAIL
    if history.in_place.get(replica, 0) < limits.in_place:
        return Action.RESTART_REPLICA
    return Action.RESTART_JOB if history.whole_job < limits.whole_job else Action.FAIL


def is_retriable(
    replica: Replica, exit_code: int, history: RestartHistory, limits: RestartLimits, now: float
) -> bool:
    """Whether another start may go better.

    A signal comes from outside: from the kernel when memory runs out, above all. Any other exit code is the
    program's own word, as a Python exception (1) or wrong arguments (2), unless it failed because it had
    just lost a peer.
    """
    if is_loss(exit_code):
        return True
    if exit_code not in _ERROR_CODES:
        return False
    others = (at for other, at in history.lost.items() if other != replica)
    return limits.restart_on_error or any(now - at <= _CONSEQUENCE_SECONDS for at in others)


def is_loss(exit_code: int) -> bool:
    """Whether the replica did not end by itself."""
    return exit_code < 0 or exit_code - _SIGNAL_BASE in signal.valid_signals()


def describe_exit(replica: Replica, exit_code: int) -> str:
    """A sentence as AI Platform has it."""
    if exit_code < 0:
        name = signal.Signals(-exit_code).name if -exit_code in set(signal.Signals) else str(-exit_code)
        hint = _MEMORY_HINT if exit_code == -signal.SIGKILL else ""
        return f"The replica {replica.role} {replica.index} was ended by signal {name}.{hint}"
    hint = _MEMORY_HINT if exit_code == _KILLED_CODE else ""
    return (
        f"The replica {replica.role} {replica.index} exited with a non-zero status of {exit_code}. "
        f"Termination reason: Error.{hint}"
    )
