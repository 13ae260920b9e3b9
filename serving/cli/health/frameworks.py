"""Checks of frameworks, pip, Beam and other interpreters: installed, supported, safe to fork after import."""

from __future__ import annotations

import contextlib
import json
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import msgspec
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from autoscaler.pools import PilotSpec
from serving.cli.health.result import CheckResult, format_size, report_failure, report_ok, report_warning
from serving.errors import InvalidArgument, LoadFailed
from serving.frameworks import list_selectable
from serving.predictor import interpreters
from serving.predictor.interpreter_check import check_interpreter

_PROBE = "serving.cli.health.fork_probe"
_SECONDS = 120
_PACKAGE = "pilotlight"
_LAST_LINES = 3


class ForkProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a process that imports what a pilot imports; see `serving.cli.health.fork_probe`."""

    seconds: float
    memory: int
    threads: list[str]
    forked: bool
    error: str = ""


def check_python() -> CheckResult:
    return report_ok("python", f"Python {platform.python_version()} at {sys.executable}.")


class NeededDistribution(NamedTuple):
    """A distribution that models or jobs need: what it is for, and the extra that installs it."""

    name: str
    purpose: str
    extra: str = ""


def list_distributions() -> Iterator[NeededDistribution]:
    for framework in list_selectable():
        yield NeededDistribution(framework.distributions[0], f"{framework.title} models", framework.extra)
    yield NeededDistribution("apache-beam", "batch predictions", "batch")


def check_distribution(needed: NeededDistribution) -> CheckResult:
    """Whether a distribution is installed, in a supported version."""
    name, purpose, extra = needed
    wanted = _requirement(name)
    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        package = f"{_PACKAGE}[{extra}]" if extra else str(wanted or name)
        return report_warning(
            name, f"It is not installed: no {purpose}.", f"If you need them: pip install '{package}'"
        )
    if wanted is not None and not wanted.specifier.contains(found, prereleases=True):
        return report_warning(
            name,
            f"{found} is installed; {wanted.specifier} is supported.",
            f"pip install '{wanted.name}{wanted.specifier}'",
        )
    return report_ok(name, f"{found}, for {purpose}.")


def check_pilot(spec: PilotSpec) -> CheckResult:
    """Whether a pilot can start and fork, tried in a process like one."""
    check = f"pilot {spec.key}"
    argument = json.dumps(spec.preload)
    try:
        done = subprocess.run(
            [sys.executable, "-m", _PROBE, argument],
            env=dict(spec.environment),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return report_failure(
            check,
            f"Importing what it needs took over {_SECONDS} s.",
            "Is the disk with the Python environment a slow network one, or memory being swapped?",
        )
    try:
        probed = msgspec.json.decode(done.stdout.rpartition("\n")[2] or done.stdout, type=ForkProbeResult)
    except msgspec.DecodeError:
        said = " ".join(done.stderr.strip().splitlines()[-_LAST_LINES:])
        return report_failure(
            check,
            f"Importing what it needs ended the process (exit code {done.returncode}). {said}".rstrip(),
            "Install the framework again. -4: it was built for another processor; -9: memory ran out.",
        )
    return evaluate_fork_probe(check, probed)


def evaluate_fork_probe(check: str, probed: ForkProbeResult) -> CheckResult:
    if probed.error:
        return report_failure(check, f"It cannot be imported: {probed.error}", "Install the framework again.")
    seen = f"ready in {probed.seconds:.1f} s with {format_size(probed.memory)}"
    cold = "Nodes start cold instead, in seconds. Set --pilots off if the cause cannot be removed."
    if len(probed.threads) > 1:
        return report_warning(
            check,
            f"{seen}, but it has more than one thread and must not fork: {', '.join(probed.threads)}.",
            f"{cold} Something in the Python environment starts a thread when it is imported.",
        )
    if not probed.forked:
        return report_warning(check, f"{seen}, but what it forked did not live.", cold)
    return report_ok(check, f"{seen}, has one thread and can be forked.")


def check_pip(command: Sequence[str] = (sys.executable, "-m", "pip", "--version")) -> CheckResult:
    """Whether packages of custom routines can be built and installed."""
    advice = f"{sys.executable} -m ensurepip; pip install setuptools wheel"
    missing = [name for name in ("setuptools", "wheel") if find_spec(name) is None]
    if missing:
        return report_warning(
            "pip", f"{' and '.join(missing)} is missing: packageUris cannot be built.", advice
        )
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return report_warning("pip", f"It does not run: {error}", advice)
    if done.returncode:
        said = " ".join(done.stderr.strip().splitlines()[-1:])
        return report_warning("pip", f"It does not run, so packageUris cannot be installed: {said}", advice)
    return report_ok("pip", f"{' '.join(done.stdout.split()[:2])} installs packages of custom routines.")


def _requirement(name: str) -> Requirement | None:
    """The supported versions of a distribution, from the metadata of this package."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        for line in metadata.requires(_PACKAGE) or ():
            requirement = Requirement(line)
            if canonicalize_name(requirement.name) == name:
                return requirement
    return None


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
        interpreters.resolve_interpreter_path(python)
        if quick:
            return report_ok(name, f"{python} is there.")
        found = check_interpreter(python)
    except (InvalidArgument, LoadFailed) as error:
        return report_failure(name, error.message, again)
    seen = f"{python}, {found.description}"
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
