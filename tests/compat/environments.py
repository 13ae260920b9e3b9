"""Environments of other interpreters and libraries, made on demand and kept.

A model is compared with the library that made it, in the version that made it. Such an environment lives in a
folder named after the digest of what is in it (`TESTS_COMPAT`, by default in the user's cache), so it is made
once per machine.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(
    os.environ.get("TESTS_COMPAT")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pilotlight-compat"
)
_SECONDS = 900


class Unavailable(Exception):
    """There is no such interpreter here, or no index that has the packages: the reason to skip a test."""


@dataclass(frozen=True, slots=True)
class Environment:
    """`python` is a minor version, such as "3.8"; `bare` are installed without what they require."""

    python: str
    requirements: tuple[str, ...]
    bare: tuple[str, ...] = ()


# What the service had as runtime version 1.15. Short forms of tests need no other, since to make one takes a
# minute and more.
RUNTIME_1_15 = Environment(
    "3.7",
    (
        *("xgboost==0.90", "scikit-learn==0.22.2.post1", "numpy==1.18.5", "pandas==1.0.5"),
        *("scipy==1.4.1", "joblib<1.3"),
    ),
)


def python_of(environment: Environment) -> Path:
    """The interpreter of an environment, which is made where it is missing. Raises Unavailable."""
    digest = hashlib.sha256(repr(environment).encode()).hexdigest()[:16]
    folder = ROOT / f"{environment.python}-{digest}"
    ROOT.mkdir(parents=True, exist_ok=True)
    with (ROOT / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _make(environment, folder)
            (folder / "complete").write_text(repr(environment))
    return folder / "bin" / "python"


def interpreter(version: str) -> Path:
    """An interpreter of this minor version: pyenv's, or one on the PATH. Raises Unavailable."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found = sorted(root.glob(f"versions/{version}.*/bin/python"))
    if found:
        return found[-1]
    on_path = shutil.which(f"python{version}")
    if on_path is None:
        raise Unavailable(f"no Python {version} in {root} or on the PATH")
    return Path(on_path)


def _make(environment: Environment, folder: Path) -> None:
    _run([str(interpreter(environment.python)), "-m", "venv", str(folder)])
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, "--upgrade", "pip"])  # those of old interpreters do not know today's kinds of wheels
    if environment.requirements:
        _run([*pip, "--prefer-binary", *environment.requirements])
    if environment.bare:
        _run([*pip, "--prefer-binary", "--no-deps", *environment.bare])


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{' '.join(command)} took more than {_SECONDS} s") from error
    if done.returncode:
        raise Unavailable(f"{' '.join(command)} failed: {done.stderr.strip()[-500:]}")
