from __future__ import annotations

import os
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from autoscaler.pools import PilotSpec
from serving.cli.health import frameworks
from serving.cli.health.frameworks import ForkProbeResult, NeededDistribution
from serving.cli.health.result import CheckLevel
from serving.gateway.control.pilot_specs import list_framework_pilots

GOOD = ForkProbeResult(seconds=1.5, memory=100 << 20, threads=["MainThread"], forked=True)


def environment(tmp_path: Path, code: str) -> dict[str, str]:
    """One in which Python runs `code` whenever it starts."""
    (tmp_path / "sitecustomize.py").write_text(code)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}


def test_a_pilot_that_can_be_forked() -> None:
    """In a process like a pilot: the one for scikit-learn and XGBoost."""
    (spec,) = (one for one in list_framework_pilots(os.environ) if one.key == "tabular")
    finding = frameworks.check_pilot(spec)

    assert finding.level is CheckLevel.OK, finding
    assert finding.check == "pilot tabular"
    assert "can be forked" in finding.message


def test_a_process_with_threads_is_not_forked(tmp_path: Path) -> None:
    """As the pilot itself would have it."""
    thread = "threading.Thread(target=time.sleep, args=(60,), name='busy', daemon=True)"
    code = f"import threading, time\n{thread}.start()"
    finding = frameworks.check_pilot(PilotSpec("pilot", ("json",), environment(tmp_path, code)))

    assert finding.level is CheckLevel.WARN, finding
    assert "busy" in finding.message
    assert "--pilots off" in finding.advice


def test_a_framework_that_cannot_be_imported() -> None:
    """The error is told."""
    finding = frameworks.check_pilot(PilotSpec("pilot", ("json", "no.such.module"), os.environ))

    assert finding.level is CheckLevel.FAIL
    assert "No module named 'no'" in finding.message


def test_a_framework_that_kills_the_process(tmp_path: Path) -> None:
    """As one does that was built for another processor."""
    (tmp_path / "deadly.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    finding = frameworks.check_pilot(PilotSpec("pilot", ("deadly",), environment(tmp_path, "")))

    assert finding.level is CheckLevel.FAIL
    assert "exit code -4" in finding.message


def test_a_fork_that_dies() -> None:
    """The process is fine, what it forks is not."""
    probed = ForkProbeResult(seconds=1, memory=1, threads=["MainThread"], forked=False)

    assert frameworks.evaluate_fork_probe("pilot", GOOD).level is CheckLevel.OK
    assert frameworks.evaluate_fork_probe("pilot", probed).level is CheckLevel.WARN


@pytest.mark.parametrize("name", ["scikit-learn", "xgboost"])
def test_versions(name: str) -> None:
    """Those that the tests run with are supported."""
    (needed,) = (one for one in frameworks.list_distributions() if one.name == name)
    finding = frameworks.check_distribution(needed)

    assert finding.level is CheckLevel.OK
    assert metadata.version(name) in finding.message


def test_a_version_that_is_not_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says which are."""
    monkeypatch.setattr(frameworks, "_requirement", lambda _: Requirement("xgboost>=99,<100"))
    finding = frameworks.check_distribution(NeededDistribution("xgboost", "XGBoost models"))

    assert finding.level is CheckLevel.WARN
    assert ">=99" in finding.message
    assert finding.advice == "pip install 'xgboost<100,>=99'"


def test_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what that is for, and how to have it."""

    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    finding = frameworks.check_distribution(NeededDistribution("apache-beam", "batch predictions", "batch"))

    assert finding.level is CheckLevel.WARN
    assert "batch predictions" in finding.message
    assert finding.advice.endswith("pip install 'pilotlight[batch]'")


def test_pip(tmp_path: Path) -> None:
    """One that does not run is told of."""
    assert frameworks.check_pip().level is CheckLevel.OK
    broken = frameworks.check_pip([sys.executable, "-c", "raise SystemExit('broken pip')"])
    missing = frameworks.check_pip([str(tmp_path / "none")])

    assert broken.level is missing.level is CheckLevel.WARN
    assert "broken pip" in broken.message


def test_python() -> None:
    """Which one it is."""
    assert sys.executable in frameworks.check_python().message
