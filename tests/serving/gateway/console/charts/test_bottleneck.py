"""What is said of where the time goes is what was counted, and what is advised is about the longest part."""

from __future__ import annotations

import pytest

from serving.gateway.console.charts.bottleneck import Bottleneck, find_bottleneck
from serving.gateway.observability.phase_sums import add_up_phases
from serving.gateway.observability.prediction_stats import PhaseHistograms
from serving.names import VersionName
from tests.serving.gateway.console.charts.test_phase_bars import histogram

NAME = VersionName("p", "m", "v1")


def find(phases: PhaseHistograms, started: PhaseHistograms = ()) -> Bottleneck | None:
    return find_bottleneck(NAME, add_up_phases(phases, started), period="lately")


def test_the_longest_parts_are_named_and_the_little_ones_are_not() -> None:
    found = find(
        (
            ("total", histogram(0.02, 0.022)),
            ("gateway", histogram(0.0002, 0.0002)),
            ("wait", histogram(0.001, 0.003)),
            ("infer", histogram(0.018, 0.018)),
        ),
    )

    assert found is not None
    assert found.sentence == (
        "Of 21 ms that an answer of a ready node took on average lately, 18 ms were the model's own "
        "computing and 2.0 ms were waiting in the node's queue."
    )
    assert "How it is computed" in found.action
    assert found.command == ""


@pytest.mark.parametrize(
    ("phase", "action", "flags"),
    [
        ("wait", "Most nodes", "--max-nodes N"),
        ("queue", "Most nodes", "--max-nodes N"),
        ("parse", "binary tensors", ""),
        ("gateway", "machine is busy", ""),
    ],
)
def test_what_is_advised_is_about_the_longest_part(phase: str, action: str, flags: str) -> None:
    phases = (("total", histogram(0.05)), ("infer", histogram(0.01)), (phase, histogram(0.03)))
    found = find(phases)

    assert found is not None
    assert action in found.action
    update = "pilotlight versions update v1 --model m --project p"
    assert found.command == (f"{update} {flags}" if flags else "")


def test_nothing_is_advised_where_answers_are_quick() -> None:
    found = find((("total", histogram(0.003)), ("gateway", histogram(0.002))))

    assert found is not None
    assert "nothing has to be done" in found.action
    assert found.command == ""


def test_waits_for_starts_are_told_apart() -> None:
    """They are in no mean of the others, and are what is advised about where they take most of the time."""
    started = (("total", histogram(0.9)), ("queue", histogram(0.1)))
    total = ("total", histogram(0.02, 0.02, 0.9))
    found = find((total, ("infer", histogram(0.02, 0.02, 0.02)), *started[1:]), started)

    assert found is not None
    assert found.sentence == (
        "Of 20 ms that an answer of a ready node took on average lately, 20 ms were the model's own "
        "computing. 1 request waited for the start of a node, and took 900 ms."
    )
    assert "Least nodes" in found.action
    assert found.command.endswith("--min-nodes 1")
    only = find(started, started)
    assert only is not None
    assert only.sentence == "1 request waited for the start of a node lately, and took 900 ms."
    assert find(()) is None
