from __future__ import annotations

import pytest

from loadtests.shapes import SHAPES, LoadPlan, LoadStage, ShapeSettings

KNOBS = ShapeSettings(rate=40, step_seconds=10, idle_seconds=30, steps=4, cycles=2)

# Requests per second at a time.
STORIES: list[tuple[str, list[tuple[float, float]]]] = [
    ("steady", [(-0.1, 0), (0, 40), (9.9, 40), (10, 0)]),
    ("burst", [(0, 0), (29.9, 0), (30, 40), (39.9, 40), (40, 0)]),
    (
        "staircase",
        [(0, 10), (9.9, 10), (10, 20), (20, 30), (30, 40), (40, 30), (50, 20), (60, 10), (69.9, 10), (70, 0)],
    ),
    ("idle-wake-idle", [(0, 0), (30, 40), (39.9, 40), (40, 0), (69.9, 0), (70, 40), (80, 0), (109.9, 0)]),
]


@pytest.mark.parametrize(("shape", "story"), STORIES)
def test_a_shape_is_a_function_of_time(shape: str, story: list[tuple[float, float]]) -> None:
    """What is due per second, at the edges of each stage."""
    plan = SHAPES[shape](KNOBS)

    def rate_at(now: float) -> float:
        return next((span.rate for span in plan.spans if span.begin <= now < span.end), 0.0)

    assert [(at, rate_at(at)) for at, _ in story] == story


@pytest.mark.parametrize(
    ("shape", "seconds", "requests", "awakenings", "sleeps"),
    [
        ("steady", 10, 400, (0,), False),
        ("burst", 40, 400, (30,), True),
        ("staircase", 70, 1600, (0,), False),
        ("idle-wake-idle", 110, 800, (30, 70), True),
    ],
)
def test_a_shape_knows_its_length_its_requests_and_its_wakeups(
    shape: str, seconds: float, requests: int, awakenings: tuple[float, ...], sleeps: bool
) -> None:
    """What the report counts on."""
    plan = SHAPES[shape](KNOBS)

    assert plan.shape == shape
    assert plan.seconds == seconds
    assert len(list(plan.iter_due_times())) == plan.count_due_before(seconds) == requests
    assert plan.list_wake_times() == awakenings
    assert plan.sleeps is sleeps


def test_every_shape_says_what_a_pass_means() -> None:
    """In its docstring, which `--help` shows."""
    assert [name for name, shape in SHAPES.items() if "pass:" not in (shape.__doc__ or "")] == []


def test_requests_are_due_evenly_and_in_order() -> None:
    """Each stage begins with a request, and a fraction of one at its end is none."""
    plan = LoadPlan("", (LoadStage(0.3, 10), LoadStage(1, 0), LoadStage(1, 2.5)))

    assert list(plan.iter_due_times()) == pytest.approx([0, 0.1, 0.2, 1.3, 1.7, 2.1])
    assert [plan.count_due_before(at) for at in (0, 0.05, 0.1, 1.2, 1.31, 9)] == [0, 1, 1, 3, 4, 6]
