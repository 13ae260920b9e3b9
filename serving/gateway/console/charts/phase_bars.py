"""Where the time of starts and answers goes: bars, with a part for each phase. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from serving.gateway.observability.history import estimate_quantile
from serving.gateway.observability.metrics import StartSummary
from serving.gateway.observability.prediction_stats import PhaseHistograms
from serving.latency_histograms import HistogramSnapshot

BAR_WIDTH: Final = 600
# Phases of the start of a node, as they are called on a page: "start" is the whole there.
START_PHASES: Final[Mapping[str, str]] = {"start": "launch", "load": "load", "warm": "warm-up"}
_TOTAL: Final = "total"
_LEAST_SHARE: Final = 0.01
# What no phase has of an answer: frames between gateway and node, and waits of these for a processor.
TRANSFER: Final = "transfer"
NO_REQUEST: Final = HistogramSnapshot((), 0.0)
_START_PHASES: Final = ("start", "load", "warm")
_INNER_PHASES: Final = frozenset({"queue", *_START_PHASES, "gateway", "parse", "wait", "infer", "encode"})
_COMMON_PHASES: Final = ("gateway", "parse", "wait", "infer", "encode")
_WARM_MEANINGS: Final[Mapping[str, str]] = {
    _TOTAL: "from its first byte to its answer",
    "queue": "waited for a place in a node: all were taken",
}
_COLD_MEANINGS: Final[Mapping[str, str]] = {
    _TOTAL: "from its first byte to its answer",
    "queue": "waited for the start to begin",
    "start": "waited for a node's process to be there",
    "load": "waited for the model to load",
    "warm": "waited for a node to warm up",
}
_COMMON_MEANINGS: Final[Mapping[str, str]] = {
    "gateway": "passed on",
    TRANSFER: "on the way to the node and back, or without a processor",
    "parse": "read",
    "wait": "waited in the node's queue",
    "infer": "computed by the model",
    "encode": "written",
}


@dataclass(frozen=True, slots=True)
class BarPart:
    """A phase; `x` and `width` are of its part of a bar that is BAR_WIDTH wide."""

    name: str
    seconds: float
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class StartRow:
    """The mean start of a node, forked or cold, by phase."""

    how: str
    count: int
    total: float
    parts: Sequence[BarPart]


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """A phase of the answers of a version.

    `count` requests had it; `mean` and `p99` are of these, in seconds; `p99` is None where it is not known.
    `part` is its share of an answer.
    """

    name: str
    meaning: str
    count: int
    mean: float
    p99: float | None
    part: BarPart


@dataclass(frozen=True, slots=True)
class PhaseGroup:
    """Phases of one kind of requests."""

    title: str
    rows: Sequence[PhaseRow]


def view_starts(starts: Iterable[StartSummary]) -> Sequence[StartRow]:
    """Bars on one scale: the longest is the whole width."""
    known = list(starts)
    longest = max((one.seconds[_TOTAL] for one in known), default=0.0)
    return [
        StartRow(
            one.how,
            one.count,
            one.seconds[_TOTAL],
            _stack([(title, one.seconds[name]) for name, title in START_PHASES.items()], longest),
        )
        for one in known
    ]


def view_answers(phases: PhaseHistograms, started: PhaseHistograms = ()) -> Sequence[PhaseGroup]:
    """Apart: requests that met a ready node, those that waited for the start of one (`started` has the total
    and the queue of these), and what both had in common. Each phase is drawn as its part of the answer by a
    ready node, in the order of a request. None without an answer.
    """
    found, cold = dict(phases), dict(started)
    if _TOTAL not in found:
        return ()
    separated = separate_warm(phases, started)
    warm = {name: separated[name] for name in _WARM_MEANINGS if name in separated}
    waits = cold | {name: found[name] for name in _START_PHASES if name in found}
    common: dict[str, HistogramSnapshot] = {name: found[name] for name in _COMMON_PHASES if name in found}
    rest = found[_TOTAL].seconds - sum(one.seconds for name, one in found.items() if name in _INNER_PHASES)
    if rest > _LEAST_SHARE * found[_TOTAL].seconds:
        common[TRANSFER] = HistogramSnapshot(found[_TOTAL].counts, rest)
    groups = (
        ("Met a ready node", _WARM_MEANINGS, warm),
        ("Waited for the start of a node", _COLD_MEANINGS, waits if cold else {}),
        ("By part, of both" if cold else "By part", _COMMON_MEANINGS, common),
    )
    shown = [(title, meanings, _drop_empty(those)) for title, meanings, those in groups]
    return [
        PhaseGroup(title, _build_rows(meanings, those, warm[_TOTAL] if title != groups[1][0] else None))
        for title, meanings, those in shown
        if those
    ]


def separate_warm(phases: PhaseHistograms, started: PhaseHistograms) -> dict[str, HistogramSnapshot]:
    """The phases of the requests that met a ready node; what nodes count is of all."""
    cold = dict(started)
    return {
        name: _subtract(one, cold[name]) if name in cold else one
        for name, one in phases
        if name not in _START_PHASES
    }


def _drop_empty(phases: Mapping[str, HistogramSnapshot]) -> Mapping[str, HistogramSnapshot]:
    return {name: one for name, one in phases.items() if any(one.counts)}


def _subtract(one: HistogramSnapshot, other: HistogramSnapshot) -> HistogramSnapshot:
    counts = tuple(a - b for a, b in zip(one.counts, other.counts, strict=True))
    return HistogramSnapshot(counts, max(0.0, one.seconds - other.seconds))


def compute_mean(phase: HistogramSnapshot) -> float:
    """In seconds; 0 without a request."""
    return phase.seconds / max(1, sum(phase.counts))


def _build_rows(
    meanings: Mapping[str, str], phases: Mapping[str, HistogramSnapshot], whole: HistogramSnapshot | None
) -> Sequence[PhaseRow]:
    """`whole` is the bar that parts are of; None: that of their own total."""
    names = [name for name in meanings if name in phases]
    own = phases.get(_TOTAL)
    longest = compute_mean(whole if whole is not None and any(whole.counts) else own or NO_REQUEST)
    parts = _stack([(name, compute_mean(phases[name])) for name in names if name != _TOTAL], longest)
    bars = {part.name: part for part in parts}
    if own is not None:
        bars[_TOTAL] = BarPart(_TOTAL, compute_mean(own), 0, BAR_WIDTH)
    return [
        PhaseRow(
            START_PHASES.get(name, name),
            meanings[name],
            sum(phases[name].counts),
            compute_mean(phases[name]),
            None if name == TRANSFER else estimate_quantile(phases[name].counts, 0.99),
            bars[name],
        )
        for name in names
    ]


def _stack(phases: Sequence[tuple[str, float]], longest: float) -> Sequence[BarPart]:
    """Parts side by side, within the width of a bar that is so many seconds long."""
    scale = BAR_WIDTH / longest if longest > 0 else 0.0
    parts, x = [], 0.0
    for name, seconds in phases:
        width = min(seconds * scale, BAR_WIDTH - x)
        parts.append(BarPart(name, seconds, round(x, 1), round(width, 1)))
        x += width
    return parts
