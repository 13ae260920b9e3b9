"""The shapes of a load: how many requests per second are due when, and the objective.

A shape is a function from a few numbers to a plan, which is a pure function of time: it knows neither locust
nor the clock. Every shape demands that

- each request is answered, rightly;
- the first request after a time without traffic is answered within `--wake-within`;
- in the second half of each stage, when nodes had time to follow, p99 is within `--p99-within`.

Further demands of a shape are in its docstring. Demands on nodes are judged if the server reports its nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class ShapeSettings:
    """The parameters of shapes."""

    rate: float = 50.0
    """Requests per second at the peak."""
    step_seconds: float = 30.0
    """How long each stage with traffic lasts."""
    idle_seconds: float = 330.0
    """How long each stage without traffic lasts. Versions sleep if that exceeds their idle time-out."""
    steps: int = 5
    """Steps of the staircase up to the peak."""
    cycles: int = 1
    """Wake-ups of idle-wake-idle."""


@dataclass(frozen=True)
class LoadStage:
    """`seconds` during which `rate` requests per second are due, evenly spaced; 0: none."""

    seconds: float
    rate: float


@dataclass(frozen=True)
class StageSpan:
    """A stage and when it lasts, in seconds since the start of the run."""

    begin: float
    end: float
    rate: float


@dataclass(frozen=True)
class LoadPlan:
    """The stages of a shape. Times are seconds since the start of the run."""

    shape: str
    stages: tuple[LoadStage, ...]
    sleeps: bool = False
    """Whether all nodes must be gone at the end of each stage without traffic."""

    @property
    def seconds(self) -> float:
        return sum(stage.seconds for stage in self.stages)

    @property
    def spans(self) -> tuple[StageSpan, ...]:
        """The stages in order, with their times."""
        spans: list[StageSpan] = []
        for stage in self.stages:
            begin = spans[-1].end if spans else 0.0
            spans.append(StageSpan(begin, begin + stage.seconds, stage.rate))
        return tuple(spans)

    def iter_due_times(self) -> Iterator[float]:
        """The times at which requests should be sent, in order."""
        for span in self.spans:
            for number in range(_count_due(span, span.end)):
                yield span.begin + number / span.rate

    def count_due_before(self, now: float) -> int:
        return sum(_count_due(span, min(now, span.end)) for span in self.spans)

    def list_wake_times(self) -> tuple[float, ...]:
        """When traffic begins after a stage without traffic."""
        rates = (0.0, *(span.rate for span in self.spans))
        begins = zip(rates, self.spans, strict=False)
        return tuple(span.begin for before, span in begins if span.rate and not before)


def _count_due(span: StageSpan, end: float) -> int:
    # Rounded, because 0.3 s of 10 a second must be three and not four.
    return max(0, math.ceil(round((end - span.begin) * span.rate, 6)))


def plan_steady(settings: ShapeSettings) -> LoadPlan:
    """The peak rate for step-seconds. A pass: the server keeps up with it, without a failure."""
    return LoadPlan("steady", (LoadStage(settings.step_seconds, settings.rate),))


def plan_burst(settings: ShapeSettings) -> LoadPlan:
    """Nothing for idle-seconds, then the peak rate at once. A pass: the version was asleep when it came,
    nothing of it was lost, and the nodes caught up with it by its second half."""
    return LoadPlan(
        "burst",
        (LoadStage(settings.idle_seconds, 0), LoadStage(settings.step_seconds, settings.rate)),
        sleeps=True,
    )


def plan_staircase(settings: ShapeSettings) -> LoadPlan:
    """Up to the peak rate in equal steps of step-seconds, and down again. A pass: on every step the server
    keeps up, and taking nodes away on the way down costs no request."""
    steps = (*range(1, settings.steps + 1), *range(settings.steps - 1, 0, -1))
    return LoadPlan(
        "staircase",
        tuple(LoadStage(settings.step_seconds, settings.rate * k / settings.steps) for k in steps),
    )


def plan_idle_wake_idle(settings: ShapeSettings) -> LoadPlan:
    """Nothing for idle-seconds, then the peak rate for step-seconds, as often as cycles say, and nothing
    again. A pass: the version was asleep before each wake-up, and is asleep at the end."""
    idle = LoadStage(settings.idle_seconds, 0)
    wake = LoadStage(settings.step_seconds, settings.rate)
    return LoadPlan("idle-wake-idle", ((idle, wake) * settings.cycles) + (idle,), sleeps=True)


SHAPES: dict[str, Callable[[ShapeSettings], LoadPlan]] = {
    "steady": plan_steady,
    "burst": plan_burst,
    "staircase": plan_staircase,
    "idle-wake-idle": plan_idle_wake_idle,
}
