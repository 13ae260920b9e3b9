"""Checks of the interpreters for old runtime versions: whether they run, and can be forked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from serving.cli.health.result import CheckResult, report_failure, report_ok, report_warning
from serving.errors import InvalidArgument, LoadFailed
from serving.predictor import interpreters
from serving.predictor.interpreter_check import check_interpreter


def create_runtime_checks(
    state_dir: Path, given: Sequence[str], *, quick: bool
) -> list[Callable[[], CheckResult]]:
    """A check for each runtime version of the setting and of the state folder."""
    try:
        known = {
            **interpreters.read_interpreters(state_dir / interpreters.INTERPRETERS_FILE),
            **interpreters.parse_interpreters(given),
        }
    except InvalidArgument as error:
        finding = report_failure(
            "runtimes", error.message, "Correct the setting, or `pilotlight runtimes add` it again."
        )
        return [lambda: finding]
    return [partial(check_runtime, version, python, quick=quick) for version, python in sorted(known.items())]


def check_runtime(version: str, python: str, *, quick: bool) -> CheckResult:
    """Whether an interpreter works; `quick`: only whether it exists."""
    name = f"runtime {version}"
    again = f"pilotlight runtimes add {version} --python PATH, or --create"
    try:
        interpreters.resolve_interpreter(python)
        if quick:
            return report_ok(name, f"{python} is there.")
        found = check_interpreter(python)
    except (InvalidArgument, LoadFailed) as error:
        return report_failure(name, error.message, again)
    seen = f"{python}, {found.libraries}"
    if found.broken:
        broken = "; ".join(f"{library}: {reason}" for library, reason in found.broken.items())
        return report_warning(name, f"{seen}, but cannot import all it has: {broken}", again)
    if found.threads > 1:
        return report_warning(
            name,
            f"{seen}, but has {found.threads} threads once these are imported, and must not be forked.",
            "Nodes start it cold instead, in seconds.",
        )
    return report_ok(name, f"{seen}, can be forked.")
