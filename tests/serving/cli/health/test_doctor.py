from __future__ import annotations

import re
from pathlib import Path

from serving.cli.health.result import (
    CheckLevel,
    CheckResult,
    format_results,
    report_ok,
    report_warning,
    run_checks,
)
from tests.emulator import Emulator
from tests.serving.cli.conftest import Run

PAGE = Path(__file__).parents[4] / "docs" / "doctor.md"


def test_all_is_well(emulator: Emulator, offline: Run, tmp_path: Path) -> None:
    """A line for each check, and exit code 0; nothing is left behind."""
    bucket = emulator.bucket()
    state_dir = tmp_path / "state"
    result = offline(f"doctor --quick --port 0 --state-dir {state_dir} --bucket gs://{bucket} --write")

    assert result.code == 0, result.out
    shown = [line for line in result.out.splitlines() if line.strip() and "->" not in line]
    assert all(re.match(r"(ok|warn)  ", line) for line in shown[:-1])
    assert re.fullmatch(r"\d+ checks: 0 failed, \d+ with a warning\.", shown[-1])
    assert not state_dir.exists()


def test_something_fails(emulator: Emulator, offline: Run, tmp_path: Path) -> None:
    """Exit code 1, and what to do about it; JSON has all of it."""
    (tmp_path / "file").touch()
    result = offline(f"doctor --quick --format json --state-dir {tmp_path / 'file'} --bucket gs://none")

    assert result.code == 1
    failed = {found["check"]: found for found in result.json if found["level"] == "fail"}
    assert failed.keys() >= {"state folder", "bucket"}
    assert failed["bucket"]["advice"]


def test_wrong_usage(offline: Run) -> None:
    """A bucket to write to must be named."""
    assert offline("doctor --write").code == 2


def test_a_check_that_breaks_hides_no_other() -> None:
    """It is told of as a failure."""

    def broken() -> CheckResult:
        raise RuntimeError("oh")

    first, second = run_checks([broken, lambda: report_ok("a", "b")])

    assert first.level is CheckLevel.FAIL
    assert "RuntimeError: oh" in first.message
    assert second.level is CheckLevel.OK


def test_advice_stands_below_its_finding() -> None:
    """And the last line sums up."""
    found, advice, summary = format_results([report_warning("disk", "Little.", "Buy one.")])

    assert found.split() == ["warn", "disk", "Little."]
    assert advice.strip() == "-> Buy one."
    assert summary == "1 checks: 0 failed, 1 with a warning."


def test_every_check_is_on_the_page(emulator: Emulator, offline: Run) -> None:
    """And no others."""
    told = offline("doctor --quick --format json --bucket gs://none --write").json
    described = set(re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(), re.MULTILINE))

    # Pilots are tried without --quick only.
    shown = {name for name in described if not name.startswith("pilot ")} - {"runtime VERSION"}
    assert shown == {found["check"] for found in told}
