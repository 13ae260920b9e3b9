"""`pilotlight runtimes`: interpreters by runtime version, and environments that are built for them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from serving.cli.admin import runtimes
from serving.cli.health.frameworks import create_runtime_checks
from serving.cli.health.result import CheckLevel
from serving.predictor import interpreters, python_environments
from serving.predictor.runtime_versions import RUNTIME_VERSIONS, find_compatible_requirements, suggest_runtime
from tests.end_to_end.models import wheel


def pilotlight(state: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command, without any index."""
    variables = {**os.environ, "PILOTLIGHT_STATE_DIR": str(state), "PIP_NO_INDEX": "1", **environment}
    return subprocess.run(
        [sys.executable, "-c", "from serving.cli import main; main()", "runtimes", *words],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )


def program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_an_interpreter_is_added_listed_and_removed(tmp_path: Path) -> None:
    """With what it has."""
    added = pilotlight(tmp_path, "add", "1.15", "--python", sys.prefix)

    assert added.returncode == 0, added.stderr
    assert "Runtime version 1.15 is computed by" in added.stderr
    python = str(Path(sys.prefix, "bin", "python"))
    assert json.loads((tmp_path / interpreters.INTERPRETERS_FILE).read_text()) == {"1.15": python}
    listed = pilotlight(tmp_path, "list", PILOTLIGHT_RUNTIME=f"2.1={sys.executable}").stdout.splitlines()
    assert [line.split()[0] for line in listed] == ["1.15", "2.1"]
    assert "scikit-learn" in listed[0]

    assert pilotlight(tmp_path, "remove", "1.15").returncode == 0
    assert "no interpreter for the runtime version 1.15" in pilotlight(tmp_path, "remove", "1.15").stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("add", "1.15"), "--python PATH, or --create"),
        (("add", "new", "--create"), "'new' is no runtime version"),
        (("add", "1.15", "--python", "/nowhere"), "There is no interpreter /nowhere"),
        (("add", "1.15", "--python", "/bin/false"), "/bin/false does not run what computes models"),
        (("add", "1.1", "--create"), "--with scikit-learn==1.3.2"),
        (("add", "1.1", "--python", "/bin/sh", "--with", "numpy"), "--with goes with --create"),
    ],
)
def test_what_does_not_work_is_refused(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    """Nothing is written."""
    done = pilotlight(tmp_path, *words)

    assert done.returncode != 0
    assert said in " ".join(done.stderr.replace("│", " ").split())
    assert not (tmp_path / interpreters.INTERPRETERS_FILE).exists()


@pytest.mark.soak
def test_an_environment_is_built_beside_the_one_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By venv and pip where there is no uv; here from an archive, without an index."""
    archive = wheel(tmp_path, "user", "1.0", {"user.py": ""})
    monkeypatch.setattr(
        python_environments,
        "_run_command",
        without_upgrade := _WithoutUpgrade(python_environments._run_command),
    )
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(shutil, "which", lambda name: None)

    built = [
        python_environments.create_environment(
            "1.15", tmp_path / "runtimes", sys.executable, [str(archive)], print
        )
        for _ in range(2)
    ]

    assert built == [str(tmp_path / f"runtimes/{name}/bin/python") for name in ("1.15", "1.15-2")]
    assert subprocess.run([built[0], "-c", "import user"], check=False).returncode == 0
    assert without_upgrade.asked == 2


class _WithoutUpgrade:
    """Runs all commands but the one that needs an index."""

    def __init__(self, run: object) -> None:
        self._run = run
        self.asked = 0

    def __call__(self, *command: str) -> None:
        if "--upgrade" in command:
            self.asked += 1
        else:
            self._run(*command)  # type: ignore[operator]


@pytest.mark.soak
def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """Neither its folder nor an entry; what was said is shown."""
    done = pilotlight(
        tmp_path, "add", "1.3.2", "--create", "--with", "no-such-package==1.0", PATH="/usr/bin:/bin"
    )

    assert done.returncode == 1
    assert "The environment could not be built" in done.stderr
    assert list((tmp_path / "runtimes").iterdir()) == []
    assert not (tmp_path / interpreters.INTERPRETERS_FILE).exists()


@pytest.mark.parametrize(
    ("saved", "version", "command"),
    [
        ("0.20.4", "1.15", "pilotlight runtimes add 1.15 --create"),
        ("0.22.1", "2.1", "pilotlight runtimes add 2.1 --create"),
        ("0.24.1", "2.6", "pilotlight runtimes add 2.6 --create"),
        ("1.0.2", "2.11", "pilotlight runtimes add 2.11 --create"),
        ("1.3.2", "1.3.2", "pilotlight runtimes add 1.3.2 --create --with scikit-learn==1.3.2"),
        ("1.4.dev0", "1.4", "pilotlight runtimes add 1.4 --create --with scikit-learn==1.4.dev0"),
    ],
)
def test_the_command_for_models_of_a_version(saved: str, version: str, command: str) -> None:
    """Its runtime version can be written into a version."""
    remedy = suggest_runtime(saved)

    assert (remedy.command, remedy.runtime_version) == (command, version)
    assert interpreters.check_runtime_version(version) == version


def test_what_goes_with_a_version_of_scikit_learn() -> None:
    """The Python that it was made for, and libraries of its time."""
    assert find_compatible_requirements(["scikit-learn==1.3.2"])[0] == "3.10"
    assert "numpy<2" in find_compatible_requirements(["scikit-learn==1.3.2"])[1]
    assert find_compatible_requirements(["numpy"])[0] == ""
    assert {"numpy<2", "protobuf<3.20"} < {
        *find_compatible_requirements(["tensorflow==2.8.0", "pandas==1.4.1"])[1]
    }
    assert not {"numpy<2", "protobuf<3.20"} & {
        *find_compatible_requirements(["tensorflow==2.18.0", "pandas==2.2.2"])[1]
    }
    assert all(release.python == "3.7" for release in RUNTIME_VERSIONS.values())


def test_doctor_looks_at_each(tmp_path: Path) -> None:
    """What works, what is gone, what cannot be forked, and a file that is damaged."""
    python = program(
        tmp_path / "threads",
        """echo '{"python": "3.7.1", "versions": {"numpy": "1.18"}, "broken": {}, "threads": 2}'""",
    )
    broken = program(
        tmp_path / "broken",
        """echo '{"python": "3.7.1", "versions": {}, "broken": {"xgboost": "OSError: x"}, "threads": 1}'""",
    )
    known = {"1.15": sys.executable, "2.1": "/gone", "2.2": python, "2.3": broken, "2.4": "/bin/false"}
    interpreters.write_interpreters(tmp_path / interpreters.INTERPRETERS_FILE, known)

    found = [check() for check in create_runtime_checks(tmp_path, (), quick=False)]

    assert [one.check for one in found] == [f"runtime {version}" for version in known]
    assert [one.level for one in found] == [
        CheckLevel.OK,
        CheckLevel.FAIL,
        CheckLevel.WARN,
        CheckLevel.WARN,
        CheckLevel.FAIL,
    ]
    assert "2 threads" in found[2].message
    assert "xgboost: OSError: x" in found[3].message
    quick = [check() for check in create_runtime_checks(tmp_path, (), quick=True)]
    assert [one.level for one in quick] == [
        CheckLevel.OK,
        CheckLevel.FAIL,
        CheckLevel.OK,
        CheckLevel.OK,
        CheckLevel.OK,
    ]

    (tmp_path / interpreters.INTERPRETERS_FILE).write_text("[")
    (finding,) = [check() for check in create_runtime_checks(tmp_path, (), quick=True)]
    assert finding.level is CheckLevel.FAIL


def test_a_setting_that_names_nothing_stops_the_server_from_starting(tmp_path: Path) -> None:
    """With what is wrong."""
    done = subprocess.run(
        [sys.executable, "-c", "from serving.cli import main; main()", "serve", "--port", "0",
         "--state-dir", str(tmp_path), "--runtime", f"1.15={sys.executable}", "--runtime",
         "2.1=/nowhere/python"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )  # fmt: skip

    assert done.returncode == 1
    assert "The setting runtime has '2.1=/nowhere/python'" in done.stderr


def test_the_commands_are_shown() -> None:
    """`--help` teaches them."""
    assert {"add", "list", "remove"} <= set(pilotlight(Path("/nowhere"), "--help").stdout.split())
    assert runtimes.add_runtime.__doc__ is not None
