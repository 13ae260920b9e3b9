"""How long a pool of local processes waits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PoolTiming:
    """All in seconds.

    `last_output`: what reading the last output of a dead node may take. `housekeeping`: between two rounds.

    Of pilots: nodes wait for `pilot_start` for one that is starting, since a cold start would import the
    same; after `longest_pilot_start`, in which time without a processor does not count, one that is not ready
    is stuck, and so is one that was asked for a fork and made none for `fork`. One that failed is started
    again after `first_retry`, then later each time, at most after `longest_retry`, and after `shortage_retry`
    where the machine was short of a resource. One that no version needs ends `pilot_linger` after its last
    use.
    """

    last_output: float = 1.0
    housekeeping: float = 10.0
    pilot_start: float = 60.0
    longest_pilot_start: float = 120.0
    fork: float = 2.0
    first_retry: float = 0.5
    longest_retry: float = 600.0
    shortage_retry: float = 1.0
    pilot_linger: float = 600.0


DEFAULT_TIMING = PoolTiming()
