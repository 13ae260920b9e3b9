"""Tuning jobs over servers that are killed; `tests/end_to_end/test_tuning.py` has one kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.tuning_kills import kill_servers

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


def test_twenty_kills_lose_repeat_and_change_no_trial(tmp_path: Path) -> None:
    kill_servers(tmp_path, kills=20, trials=200)
