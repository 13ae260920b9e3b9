"""Builds environments with the libraries of old versions. Only this needs a package index."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from serving.errors import InvalidArgument
from serving.predictor.interpreters import resolve_interpreter_path

ReportProgress = Callable[[str], None]

_LAST_LINES = 4


def create_environment(
    name: str, folder: Path, python: str, requirements: Sequence[str], report_progress: ReportProgress
) -> str:
    """Build an environment below `folder` and return its interpreter; what fails leaves nothing behind.

    Its own folder is a new one: versions may be using an environment that was built before. Raises
    InvalidArgument.
    """
    target = _create_folder(name, folder)
    try:
        report_progress(f"Building {target} with {python} ...")
        interpreter = str(target / "bin" / "python")
        uv = shutil.which("uv")
        if uv is None or not _install_with_uv(uv, python, target, requirements, report_progress):
            _run_command(python, "-m", "venv", "--clear", str(target))
            pip = (interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
            report_progress("Installing pip ...")
            _run_command(*pip, "--upgrade", "pip")  # that of an old Python does not know today's wheels
            report_progress(f"Installing {', '.join(requirements)} ...")
            _run_command(*pip, *requirements)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    return interpreter


def find_python(version: str) -> str:
    """An interpreter of a minor version: on the path, or one that pyenv keeps. Raises InvalidArgument."""
    path = shutil.which(f"python{version}")
    if path and _is_runnable(path):  # pyenv puts names there also for what is not switched on
        return path
    kept = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python"))
    if kept:
        return resolve_interpreter_path(str(kept[-1]))
    raise InvalidArgument(
        f"There is no Python {version} here. Install it, for instance by `pyenv install {version}` or `uv "
        f"python install {version}`, and name it with --python."
    )


def _create_folder(name: str, folder: Path) -> Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for number in itertools.count(1):
        target = folder / (name if number == 1 else f"{name}-{number}")
        try:
            target.mkdir()
        except FileExistsError:
            continue
        return target.absolute()
    raise AssertionError


def _install_with_uv(
    uv: str, python: str, target: Path, requirements: Sequence[str], report_progress: ReportProgress
) -> bool:
    """Whether that went well: it takes seconds, but refuses some packages that pip installs."""
    interpreter = str(target / "bin" / "python")
    try:
        _run_command(uv, "venv", "--quiet", "--seed", "--clear", "--python", python, str(target))
        report_progress(f"Installing {', '.join(requirements)} with uv ...")
        _run_command(uv, "pip", "install", "--quiet", "--python", interpreter, *requirements)
    except InvalidArgument as error:
        report_progress(f"uv did not succeed, pip is tried: {error.message}")
        return False
    return True


def _run_command(*command: str) -> None:
    """Raises InvalidArgument with the last that it said."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except OSError as error:
        raise InvalidArgument(f"Cannot run {command[0]}: {error.strerror}.") from error
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).strip().splitlines()[-_LAST_LINES:])
        raise InvalidArgument(
            f"The environment could not be built: {' '.join(command[:4])} ... failed. {said} Check "
            "that a package index is reachable."
        )


def _is_runnable(python: str) -> bool:
    done = subprocess.run([python, "-c", ""], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return done.returncode == 0
