"""Installed packages of versions, cached.

pip makes the same of the same archives and libraries, so each install is kept in the artifact cache under a
digest of everything it depends on. Packages from an index stay at the version of that time.
"""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from serving.artifacts import packages
from serving.artifacts.storage import ArtifactFetcher
from serving.errors import InvalidArgument, LoadFailed
from serving.predictor import python_environments

logger = logging.getLogger(__name__)

_PACKAGES, _ENVIRONMENT, _WARNINGS_FILE = "packages", "environment", "build.json"
# Part of each digest; changes when the way of installing changes.
_FORMAT = "3"
_ISOLATED_WARNING = (
    "The packages need other versions than the server has: they run in an environment of their own, and "
    "nodes start it cold."
)


class InstalledCode(msgspec.Struct, frozen=True):
    """Folders with a version's modules, the Python that runs them ("": the server's own), and warnings."""

    folders: tuple[Path, ...] = ()
    interpreter: str = ""
    warnings: tuple[str, ...] = ()


def install_cached(
    archives: Sequence[Path],
    target: Path,
    interpreter: str,
    storage: ArtifactFetcher,
    timeout: float | None = None,
    *,
    runtime_version: str = "",
) -> InstalledCode:
    """Install archives on top of the server's libraries, or into an environment of their own.

    The latter if another interpreter is wanted, or if they need other versions than the server has. `target`
    is a new folder, `timeout` the seconds of each run of pip, `runtime_version` the version's, "" for none.
    Raises LoadFailed.
    """
    storage.fetch_or_build(
        digest_inputs(archives, interpreter),
        lambda work: build_entry(archives, work, interpreter, timeout, runtime_version),
        target,
    )
    return read_entry(target)


def read_entry(folder: Path) -> InstalledCode:
    """What `build_entry` has put into a folder."""
    warnings = msgspec.json.decode((folder / _WARNINGS_FILE).read_bytes(), type=tuple[str, ...])
    if (folder / _ENVIRONMENT).is_dir():
        return InstalledCode(interpreter=packages.interpreter_of(folder / _ENVIRONMENT), warnings=warnings)
    # A process of its own, of the same Python, finds the packages first.
    apart = sys.executable if packages.shadows_server_modules(folder / _PACKAGES) else ""
    return InstalledCode(packages.search_path(folder / _PACKAGES), apart, warnings)


def digest_inputs(archives: Sequence[Path], interpreter: str) -> str:
    """A digest of what an install depends on: the archives, and the libraries that exist already."""
    found = hashlib.sha256()
    for archive in archives:
        found.update(f"{archive.name} {hashlib.sha256(archive.read_bytes()).hexdigest()}\n".encode())
    for text in (_FORMAT, interpreter, *packages.describe_install_environment(interpreter or sys.executable)):
        found.update(f"{text}\n".encode())
    return found.hexdigest()


def build_entry(
    archives: Sequence[Path], work: Path, interpreter: str, timeout: float | None, runtime_version: str
) -> None:
    """Install archives into the empty folder `work`; for the rest see `install_cached`."""
    warnings = _install_packages(archives, work, interpreter, timeout, runtime_version)
    (work / _WARNINGS_FILE).write_bytes(msgspec.json.encode(warnings))


def _install_packages(
    archives: Sequence[Path], work: Path, interpreter: str, timeout: float | None, runtime_version: str
) -> tuple[str, ...]:
    """Install; returns warnings for the owner of the packages."""
    packages.check_archives(archives, work, check_platform=not interpreter)
    environment = work / _ENVIRONMENT
    if interpreter:
        try:
            packages.install_in_environment(archives, environment, interpreter, timeout)
        except LoadFailed as error:
            compatible = packages.find_compatible_python(archives, work, timeout)
            if compatible is None:
                raise
            raise LoadFailed(f"{error.detail} {_advise_runtime(compatible, runtime_version)}") from error
        return ()
    try:
        return packages.install_packages(archives, work / _PACKAGES, timeout).warnings
    except packages.PackageConflict as conflict:
        logger.info("an environment of its own is made: %s", conflict.message)
        try:
            packages.install_in_environment(archives, environment, sys.executable, timeout)
        except LoadFailed as error:
            compatible = packages.find_compatible_python(archives, work, timeout)
            raise LoadFailed(
                f"{conflict.detail} An environment of its own failed too: {error.detail} "
                f"{_advise_runtime(compatible, runtime_version)}"
            ) from error
    return (_ISOLATED_WARNING,)


def _advise_runtime(compatible: packages.CompatiblePython | None, runtime_version: str) -> str:
    """The command that would make the packages installable."""
    if compatible is None:
        return (
            "Let the packages accept the server's versions, or have an interpreter compute them that has "
            f"what they need: {_format_runtime_command(runtime_version, '--python PATH')}."
        )
    try:
        python, place = python_environments.find_python(compatible.python), ""
    except InvalidArgument:
        python, place = "PATH", f", PATH being a Python {compatible.python}"
    wanted = " ".join(f"--with '{requirement}'" for requirement in compatible.requirements)
    options = f"--create --python {python} {wanted}"
    return (
        f"For Python {compatible.python} there is {', '.join(compatible.requirements)}: "
        f"{_format_runtime_command(runtime_version, options)}{place}. If the packages do not need these "
        "versions, let them accept the server's."
    )


def _format_runtime_command(runtime_version: str, options: str) -> str:
    if runtime_version:
        return f"`pilotlight runtimes add {runtime_version} {options}`, and try again"
    return f"`pilotlight runtimes add VERSION {options}`, and try again with that VERSION as runtimeVersion"
