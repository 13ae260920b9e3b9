"""The command that measures all protocols: what it takes."""

from __future__ import annotations

import sys

import pytest

from loadtests.bench import protocols


@pytest.mark.parametrize("flag", ["--ways", "--servers", "--workloads"])
def test_what_it_cannot_measure_is_said(
    flag: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the names that it can."""
    monkeypatch.setattr(sys, "argv", ["protocols", flag, "carrier pigeon"])

    with pytest.raises(SystemExit) as end:
        protocols.main()

    assert end.value.code == 2
    assert "carrier pigeon: not among " in capsys.readouterr().err
