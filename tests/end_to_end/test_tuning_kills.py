"""Tuning jobs over servers that are killed; `tests/soak/test_tuning_kills.py` has the long form."""

from __future__ import annotations

from pathlib import Path

from tests.end_to_end.tuning_kills import kill_servers


def test_three_kills_lose_repeat_and_change_no_trial(tmp_path: Path) -> None:
    kill_servers(tmp_path, kills=3)
