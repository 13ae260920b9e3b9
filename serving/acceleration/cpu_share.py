"""Limits a process to a share of a processor that others want too.

A background verification runs at the priority of the server beside it: at a lower one it would not end while
the server is busy. So that it does not take half of a busy processor, it pauses after every few milliseconds
of computing, for as long as its share asks. A process that never waits for a processor is not slowed down.
"""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

SHARE = 1 / 3
_INTERVAL = 0.01  # seconds of computing between two pauses
# Waiting for less than this part of the computing time is the usual noise of an idle machine.
_CONTENDED = 0.05
# Long calls of native code are not interrupted; what they used is made up for within these seconds.
_MAX_PAUSE = 1.0
_SCHEDULER_STATISTICS = Path("/proc/self/schedstat")


@dataclass(frozen=True, slots=True)
class UsageReading:
    """Seconds that have passed, that this process has computed, and that it has waited for a processor."""

    elapsed: float
    computed: float
    waited: float

    def since(self, other: UsageReading) -> UsageReading:
        return UsageReading(
            self.elapsed - other.elapsed, self.computed - other.computed, self.waited - other.waited
        )


def compute_pause(used: UsageReading, share: float = SHARE) -> float:
    """Seconds to pause after such a use, 0 where nobody else wants the processor."""
    if used.waited < _CONTENDED * used.computed:
        return 0.0
    return min(max(0.0, used.computed / share - used.elapsed), _MAX_PAUSE)


def read_usage() -> UsageReading:
    """The current reading; without scheduler statistics it never shows a wait."""
    try:
        waited = int(_SCHEDULER_STATISTICS.read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        waited = 0.0
    return UsageReading(time.perf_counter(), time.process_time(), waited)


@dataclass(slots=True)
class CpuShareLimit:
    """The limit for this process, from `start` to `stop`. The main thread pauses, in a handler of SIGPROF."""

    paused_seconds: float = 0.0
    _last: UsageReading = field(default_factory=read_usage)

    def start(self) -> None:
        self._last = read_usage()
        signal.signal(signal.SIGPROF, lambda *_: self._pause())
        signal.setitimer(signal.ITIMER_PROF, _INTERVAL, _INTERVAL)

    def stop(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)

    def clock(self) -> float:
        """Seconds without the pauses, for measurements."""
        return time.perf_counter() - self.paused_seconds

    def _pause(self) -> None:
        seconds = compute_pause(read_usage().since(self._last))
        if seconds:
            started = time.perf_counter()
            time.sleep(seconds)
            self.paused_seconds += time.perf_counter() - started
        self._last = read_usage()
