"""What an hour of faults has shown, and whether that is what is promised: events in, verdict out.

All times are seconds of one monotonic clock.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
MIB = 1 << 20
# A good request may fail for so long while the server says that it is ready.
BAD_WHILE_READY = 5.0
# What a fault broke may take so long to work again: nodes that could not start are tried again after pauses.
RECOVERY = 5.0
# Seconds between two requests of a version that is asked all the time, at most.
PAUSE = 2.0
# How much more memory, files and threads a gateway may have in the last third of its life than in the first.
GROWTH = 0.10
# So much more is no leak: a node takes about ten files of the gateway, and three of them may have come.
FEW: Mapping[str, int] = {"memory": 0, "files": 30, "threads": 8}
# Nodes and connections to them come and go within seconds: a shorter warm life shows that, and no leak.
SHORTEST_LIFE = 30.0
END_SECONDS = 15.0

NO_ANSWER = 0
WRONG_ANSWER = -1

# The failures that the promises leave open while a fault is there: docs/reliability.md says why.
EXCUSED: Mapping[str, frozenset[int]] = {
    "server killed": frozenset({NO_ANSWER}),
    "server starting": frozenset({503}),
    "files": frozenset({NO_ANSWER, 503}),
    "threads": frozenset({503}),
}
# The same for versions whose requests are not repeated: what a lost node had begun.
EXCUSED_ONCE: Mapping[str, frozenset[int]] = {
    "node killed": frozenset({500}),
    "node stopped": frozenset({500}),
}

# The faults for which a server may end before it is ready: it is started again.
NO_START = frozenset({"files", "threads", "disk"})


@dataclass(frozen=True, slots=True)
class Asked:
    """A good request to a healthy version: how it was answered, with a reason if not by 200 and the truth.

    `once` says that it is not repeated if its node dies.
    """

    version: str
    start: float
    end: float
    status: int
    reason: str = ""
    once: bool = False

    @property
    def failed(self) -> bool:
        """Whether it has no right answer."""
        return self.status != 200


@dataclass(frozen=True, slots=True)
class Probe:
    """One look at `/readyz`."""

    at: float
    ready: bool


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault and its time."""

    kind: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Usage:
    """What the gateway's process takes; `life` counts the processes that there were.

    `files` are without the connections of clients: those are as many as there are requests that wait.
    """

    at: float
    life: int
    memory: int
    files: int
    threads: int


@dataclass(frozen=True, slots=True)
class Exit:
    """A server that ended by itself before it was ready: its times, its status, and what it logged."""

    start: float
    end: float
    status: int
    log: str


@dataclass(frozen=True)
class End:
    """How the server ended after SIGTERM, and what was left of it."""

    seconds: float
    code: int
    processes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class Record:
    """All that was seen; `warm_up` is how long a new process takes to get its size."""

    asked: Sequence[Asked]
    probes: Sequence[Probe]
    faults: Sequence[Fault]
    usages: Sequence[Usage]
    end: End
    warm_up: float
    exits: Sequence[Exit] = ()


def judge(record: Record) -> list[str]:
    """What contradicts the promises, in words; nothing if all is well."""
    return [*_lost(record), *_bad_while_ready(record), *_ended(record), *_grown(record), *_left(record.end)]


def _lost(record: Record) -> Iterator[str]:
    """Those that failed alike, together."""
    alike: dict[tuple[str, str], list[Asked]] = {}
    for asked in record.asked:
        if asked.failed and not excused(asked, record.faults):
            alike.setdefault((asked.version, asked.reason or f"{asked.status}"), []).append(asked)
    for (version, reason), lost in alike.items():
        start, end = min(one.start for one in lost), max(one.end for one in lost)
        yield f"{len(lost)} requests of {version} lost between {start:.2f} and {end:.2f} s: {reason}"


def excused(asked: Asked, faults: Iterable[Fault]) -> bool:
    """Whether a fault at its time explains a failure, and no promise covers it."""
    return any(
        asked.status in EXCUSED.get(fault.kind, ())
        or (asked.once and asked.status in EXCUSED_ONCE.get(fault.kind, ()))
        for fault in faults
        if fault.start <= asked.end and asked.start <= fault.end + RECOVERY
    )


def _bad_while_ready(record: Record) -> Iterator[str]:
    for version in sorted({asked.version for asked in record.asked}):
        found, at = bad_while_ready([one for one in record.asked if one.version == version], record.probes)
        if found > BAD_WHILE_READY:
            yield f"/readyz said ready while {version} failed for {found:.1f} s, from {at:.2f} s on"


def bad_while_ready(asked: Iterable[Asked], probes: Iterable[Probe]) -> tuple[float, float]:
    """For how long, and from when, all requests failed while the server said that it was ready.

    One that hangs while others are answered fails from the last of these answers on.
    """
    ready = list(_spans(sorted(probes, key=lambda probe: probe.at), lambda probe: probe.ready, _moment))
    bad = (
        span
        for together in _without_pauses(sorted(asked, key=lambda one: one.end))
        for span in _failures(together)
    )
    overlaps = (
        (min(end, until) - max(start, since), max(start, since))
        for start, end in bad
        for since, until in ready
    )
    return max((overlap for overlap in overlaps if overlap[0] > 0), default=(0.0, 0.0))


def _failures(asked: Iterable[Asked]) -> Iterator[tuple[float, float]]:
    """From the start of the first to the end of the last, of each run of failures between two answers."""
    answered = 0.0
    for failed, run in itertools.groupby(asked, lambda one: one.failed):
        together = list(run)
        last = max(one.end for one in together)
        if failed:
            yield max(answered, min(one.start for one in together)), last
        else:
            answered = last


def _without_pauses(asked: Sequence[Asked]) -> Iterator[list[Asked]]:
    """Those between two pauses: while nobody asks, nobody fails."""
    together: list[Asked] = []
    for one in asked:
        if together and one.start > together[-1].end + PAUSE:
            yield together
            together = []
        together.append(one)
    if together:
        yield together


def _moment(probe: Probe) -> tuple[float, float]:
    return probe.at, probe.at


def _spans(
    events: Iterable[T], which: Callable[[T], bool], time: Callable[[T], tuple[float, float]]
) -> Iterator[tuple[float, float]]:
    """From the start of the first to the end of the last, of each run of neighbours that are so."""
    for is_so, run in itertools.groupby(events, which):
        if is_so:
            times = [time(event) for event in run]
            yield min(start for start, _ in times), max(end for _, end in times)


def _ended(record: Record) -> Iterator[str]:
    """Servers that ended at their start for no fault, or as if nothing were wrong, or without a word."""
    for one in record.exits:
        told = f"server that was starting from {one.start:.2f} s on ended at {one.end:.2f} s"
        if not any(
            fault.kind in NO_START and fault.start <= one.end and one.start <= fault.end
            for fault in record.faults
        ):
            yield f"{told} without a reason: {one.log[-500:]}"
        if one.status == 0:
            yield f"{told} with status 0"
        if not one.log.strip():
            yield f"{told} without a word"


def _grown(record: Record) -> Iterator[str]:
    for life, thirds in _thirds(record, SHORTEST_LIFE):
        for what, few in FEW.items():
            first, last = (statistics.median(getattr(usage, what) for usage in third) for third in thirds)
            if last > max(first * (1 + GROWTH), first + few):
                yield f"{what} of server {life} grew from {first:.0f} to {last:.0f}"


def _thirds(
    record: Record, shortest: float = 0.0
) -> Iterator[tuple[int, tuple[Sequence[Usage], Sequence[Usage]]]]:
    """The first and the last third of each server's warm life, if that took `shortest` seconds at least."""
    for life, run in itertools.groupby(record.usages, lambda usage: usage.life):
        usages = list(run)
        warm = [usage for usage in usages if usage.at >= usages[0].at + record.warm_up]
        if warm and warm[-1].at - warm[0].at >= max(record.warm_up, shortest):
            third = max(len(warm) // 3, 1)
            yield life, (warm[:third], warm[-third:])


def _left(end: End) -> Iterator[str]:
    if end.code:
        yield f"the server ended with status {end.code} after SIGTERM"
    if end.seconds > END_SECONDS:
        yield f"the server took {end.seconds:.1f} s to end after SIGTERM"
    yield from (f"process left over: {process}" for process in end.processes)
    yield from (f"file left over: {file}" for file in end.files)


def table(record: Record) -> Iterator[str]:
    """The same in figures, by kind of fault."""
    yield (
        f"{'fault':<16}{'times':>6}{'requests':>10}{'failed':>8}{'unready s':>11}{'bad while ready s':>19}"
        "  failures by reason"
    )
    kinds = sorted({fault.kind for fault in record.faults})
    for kind in kinds:
        times = [(fault.start, fault.end + RECOVERY) for fault in record.faults if fault.kind == kind]
        asked = _during(record.asked, lambda one: one.end, times)
        yield _row(kind, len(times), asked, _during(record.probes, lambda probe: probe.at, times))
    yield _row("all", len(record.faults), record.asked, record.probes)
    for life, (first, last) in _thirds(record):
        figures = [
            f"{what} {statistics.median(getattr(one, what) for one in first) / unit:.0f} → "
            f"{statistics.median(getattr(one, what) for one in last) / unit:.0f}{name}"
            for what, unit, name in (("memory", MIB, " MiB"), ("files", 1, ""), ("threads", 1, ""))
        ]
        seconds = last[-1].at - first[0].at
        yield f"server {life}, first and last third of {seconds:.0f} s: {', '.join(figures)}"
    for one in record.exits:
        yield f"a server ended at its start at {one.end:.2f} s, with status {one.status}"
    yield f"ended {record.end.seconds:.1f} s after SIGTERM, with status {record.end.code}"


def _during(events: Iterable[T], when: Callable[[T], float], times: Sequence[tuple[float, float]]) -> list[T]:
    """The events of any of the times."""
    return [event for event in events if any(start <= when(event) <= end for start, end in times)]


def _row(kind: str, times: int, asked: Sequence[Asked], probes: Sequence[Probe]) -> str:
    failed = [one for one in asked if one.failed]
    unready = _spans(sorted(probes, key=lambda probe: probe.at), lambda probe: not probe.ready, _moment)
    versions = {one.version for one in failed}
    bad = max(
        (bad_while_ready([one for one in asked if one.version == name], probes)[0] for name in versions),
        default=0.0,
    )
    reasons = Counter(one.reason or str(one.status) for one in failed).most_common(3)
    return (
        f"{kind:<16}{times:>6}{len(asked):>10}{len(failed):>8}"
        f"{max((end - start for start, end in unready), default=0.0):>11.1f}{bad:>19.1f}"
        f"  {'; '.join(f'{n}x {reason}' for reason, n in reasons)}"
    )
