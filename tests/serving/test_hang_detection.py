"""When a node counts as hung: stories of looks, a second apart."""

from __future__ import annotations

import pytest

from serving.hang_detection import HangLimits, LivenessReading, StallTimes, describe_hang, update_stall

LIMITS = HangLimits(call=5, silent=3)
IDLE, SILENT = LivenessReading(), LivenessReading(silent=True)


def story(*signs: LivenessReading, seconds: float = 1.0) -> str:
    """Why a node counts as hung after it has shown all that."""
    standstill = StallTimes()
    for sign in signs:
        standstill = update_stall(standstill, sign, seconds)
    return describe_hang(standstill, LIMITS)


@pytest.mark.parametrize(
    ("signs", "reason"),
    [
        ([IDLE] * 100, ""),
        ([LivenessReading(call=1)] * 6, ""),
        ([LivenessReading(call=1)] * 7, "one call of its model took more than 5 s (setting call_timeout)"),
        # Whether it reacts during a call says nothing, in one that is still short.
        ([LivenessReading(call=1, silent=True)] * 6, ""),
        (
            [LivenessReading(call=1, silent=True)] * 7,
            "one call of its model took more than 5 s (setting call_timeout)",
        ),
        # It works: each time it is in another call.
        ([LivenessReading(call=number) for number in range(1, 100)], ""),
        ([LivenessReading(call=1)] * 6 + [IDLE] + [LivenessReading(call=2)] * 6, ""),
        ([SILENT] * 3, ""),
        ([SILENT] * 4, "it did not react for more than 3 s, with no call of its model under way"),
        ([SILENT, SILENT, IDLE] * 10, ""),
        # After a long call it has time to react.
        ([LivenessReading(call=1, silent=True)] * 6 + [SILENT] * 3, ""),
    ],
)
def test_a_node_hangs_if_it_does_not_go_on(signs: list[LivenessReading], reason: str) -> None:
    """In a call or outside of one, for too long at a time."""
    assert story(*signs) == reason


def test_time_in_which_it_could_not_run_does_not_count() -> None:
    """However often it was looked at."""
    assert story(*[LivenessReading(call=1)] * 100, seconds=0.0) == ""
