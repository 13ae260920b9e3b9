"""Whether a node hangs: pure functions of what it showed each time somebody looked, and of the time between.

A node can hang in two ways. The model may never return: then one call goes on and on. Or the process does not
react at all, though its model has nothing to do: it was stopped, or something keeps its event loop busy.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LivenessReading:
    """What a node shows at one moment.

    `call` is the number of the call that its model works on, 0 if there is none; `silent` says that it was
    asked whether it lives, and has not answered yet.
    """

    call: int = 0
    silent: bool = False


@dataclass(frozen=True, slots=True)
class StallTimes:
    """For how many seconds a node has been seen in the same call, or silent though it was in none."""

    call: int = 0
    call_seconds: float = 0.0
    silent_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class HangLimits:
    """Seconds after which a node counts as hung; see `Standstill`."""

    call: float
    silent: float


def update_stall(before: StallTimes, sign: LivenessReading, seconds: float) -> StallTimes:
    """What is known after one more look; `seconds` are those since the last one in which the node could run.

    Silence says nothing during a call: compiled code may keep the whole process waiting, as it may.
    """
    if sign.call:
        same = sign.call == before.call
        return StallTimes(call=sign.call, call_seconds=before.call_seconds + seconds if same else 0.0)
    return StallTimes(silent_seconds=before.silent_seconds + seconds if sign.silent else 0.0)


def describe_hang(standstill: StallTimes, limits: HangLimits) -> str:
    """Why a node counts as hung, in words; "" if it does not."""
    if standstill.call_seconds > limits.call:
        return f"one call of its model took more than {limits.call:g} s (setting call_timeout)"
    if standstill.silent_seconds > limits.silent:
        return f"it did not react for more than {limits.silent:g} s, with no call of its model under way"
    return ""
