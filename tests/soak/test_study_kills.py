"""Servers of studies are killed at any moment; `tests/end_to_end/test_study_kills.py` has one kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.studies import hunt

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("run", range(4))
def test_twenty_kills_lose_no_trial(tmp_path: Path, run: int) -> None:
    search = hunt(tmp_path, kills=20, clients=4, trials=10)

    assert len(search.completed) >= 40
