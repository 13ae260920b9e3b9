"""Checks of `pilotlight doctor`: their results, how they are run, and how they are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum

_MAX_CONCURRENT = 4


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


CheckFunction = Callable[[], CheckResult]


def report_ok(check: str, message: str) -> CheckResult:
    return CheckResult(check, CheckLevel.OK, message)


def report_warning(check: str, message: str, advice: str) -> CheckResult:
    return CheckResult(check, CheckLevel.WARN, message, advice)


def report_failure(check: str, message: str, advice: str) -> CheckResult:
    return CheckResult(check, CheckLevel.FAIL, message, advice)


def format_size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def run_checks(checks: Sequence[CheckFunction]) -> Iterator[CheckResult]:
    """The results of the checks, which run concurrently: those that start processes take seconds."""
    with ThreadPoolExecutor(_MAX_CONCURRENT) as pool:
        yield from pool.map(_run_check, checks)


def format_results(results: Sequence[CheckResult]) -> list[str]:
    """A line for each result, its advice below it, and a line of totals."""
    shown = []
    for result in results:
        shown.append(f"{result.level:<4}  {result.check:<16}  {result.message}")
        if result.advice:
            shown.append(f"{'':<4}  {'':<16}  -> {result.advice}")
    failed = sum(result.level == "fail" for result in results)
    warned = sum(result.level == "warn" for result in results)
    return [*shown, f"{len(results)} checks: {failed} failed, {warned} with a warning."]


def _run_check(check: CheckFunction) -> CheckResult:
    try:
        return check()
    except Exception as error:  # one check that raises must not hide the others
        return report_failure(
            "doctor", f"A check failed: {type(error).__name__}: {error}", "Please report this."
        )
