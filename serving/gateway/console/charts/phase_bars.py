"""Where the time of starts and answers goes: bars, with a part for each phase. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from serving.gateway.observability.history import estimate_quantile
from serving.gateway.observability.metrics import StartSummary
from serving.gateway.observability.prediction_stats import PhaseHistograms

BAR_WIDTH: Final = 600
# Phases of the start of a node, as they are called on a page.
START_PHASES: Final[Mapping[str, str]] = {"start": "process", "load": "load", "warm": "warm-up"}
_TOTAL: Final = "total"
_MEANINGS: Final[Mapping[str, str]] = {
    _TOTAL: "from the last byte of a request to its answer",
    "queue": "waited for a place in a node",
    "start": "waited for the process of a node",
    "load": "waited for the model to load",
    "warm": "waited for a node to warm up",
    "gateway": "passed on",
    "parse": "read",
    "wait": "waited for the model",
    "infer": "computed",
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

    `count` requests had it; `mean` and `p99` are of these, in seconds. `part` is its share of the time of
    all requests.
    """

    name: str
    meaning: str
    count: int
    mean: float
    p99: float
    part: BarPart


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


def view_answers(phases: PhaseHistograms) -> Sequence[PhaseRow]:
    """The whole first, then its phases in the order of a request; none without an answer."""
    found = {name: histogram for name, histogram in phases if name in _MEANINGS}
    if _TOTAL not in found:
        return ()
    names = [name for name in _MEANINGS if name in found]
    parts = _stack([(name, found[name].seconds) for name in names[1:]], found[_TOTAL].seconds)
    whole = BarPart(_TOTAL, found[_TOTAL].seconds, 0, BAR_WIDTH)
    return [
        PhaseRow(
            name,
            _MEANINGS[name],
            sum(found[name].counts),
            found[name].seconds / sum(found[name].counts),
            estimate_quantile(found[name].counts, 0.99),
            part,
        )
        for name, part in zip(names, [whole, *parts], strict=True)
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
