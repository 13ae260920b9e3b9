"""The result of a check of `pilotlight doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CheckLevel(StrEnum):
    """WARN: it works now and may fail later. FAIL: it does not work."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """`check` is the name of the check, `message` what it found, `advice` what to do about it."""

    check: str
    level: CheckLevel
    message: str
    advice: str = ""


def report_ok(check: str, message: str) -> CheckResult:
    return CheckResult(check, CheckLevel.OK, message)


def report_warning(check: str, message: str, advice: str) -> CheckResult:
    return CheckResult(check, CheckLevel.WARN, message, advice)


def report_failure(check: str, message: str, advice: str) -> CheckResult:
    return CheckResult(check, CheckLevel.FAIL, message, advice)


def format_size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
