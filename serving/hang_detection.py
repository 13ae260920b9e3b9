"""Whether a node hangs: pure functions of successive readings and of the time between them.

A node can hang in two ways: a call of the model never returns, or the process does not react although its
model has nothing to do (it was stopped, or something blocks its event loop).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LivenessReading:
    """What a node shows at one moment.

    `call` is the number of its model's current call, 0 if there is none; `silent` says that a ping is
    unanswered.
    """

    call: int = 0
    silent: bool = False


@dataclass(frozen=True, slots=True)
class StallTimes:
    """For how many seconds a node has been in the same call, or silent without one."""

    call: int = 0
    call_seconds: float = 0.0
    silent_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class HangLimits:
    """Seconds after which a node counts as hung; see `StallTimes`."""

    call: float
    silent: float


def update_stall(before: StallTimes, reading: LivenessReading, seconds: float) -> StallTimes:
    """The stall times after one more reading; `seconds` are those in which the node could run since the last.

    Silence means nothing during a call: compiled code may block the whole process.
    """
    if reading.call:
        same = reading.call == before.call
        return StallTimes(call=reading.call, call_seconds=before.call_seconds + seconds if same else 0.0)
    return StallTimes(silent_seconds=before.silent_seconds + seconds if reading.silent else 0.0)


def describe_hang(stall: StallTimes, limits: HangLimits) -> str:
    """Why a node counts as hung, in words; "" if it does not."""
    if stall.call_seconds > limits.call:
        return f"one call of its model took more than {limits.call:g} s (setting call_timeout)"
    if stall.silent_seconds > limits.silent:
        return f"it did not react for more than {limits.silent:g} s, with no call of its model under way"
    return ""
