"""The code of a version: its packages, installed for the interpreter that computes it, and kept for the next.

What pip makes of the same archives for the same libraries is the same, so it is made once: the cache of what
was fetched keeps it too, by a digest of all that it depends on. What came from an index stays as it was then.
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
# Part of each digest: another number when installs are made in another way.
_FORMAT = "2"
_ISOLATED_WARNING = (
    "The packages need other versions than the server has: they run in an environment of their own, and "
    "nodes start it cold."
)


class InstalledCode(msgspec.Struct, frozen=True):
    """Where the modules of packages are, the Python that computes them, and what their owner should know.

    `interpreter` is "" for the server's own.
    """

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
    """Install archives beside the libraries of the server, or into an environment of their own.

    That is made where another interpreter is wanted, or where they need other versions than the server has.
    `target` is a new folder, `timeout` the seconds that each run of pip may take, `runtime_version` what the
    version asks for, "" for nothing. Raises LoadFailed.
    """
    storage.fetch_or_build(
        digest_inputs(archives, interpreter),
        lambda work: _build_entry(archives, work, interpreter, timeout, runtime_version),
        target,
    )
    warnings = msgspec.json.decode((target / _WARNINGS_FILE).read_bytes(), type=tuple[str, ...])
    if (target / _ENVIRONMENT).is_dir():
        return InstalledCode(interpreter=packages.interpreter_of(target / _ENVIRONMENT), warnings=warnings)
    # Another process of this Python finds the packages first.
    apart = sys.executable if packages.shadows_server_modules(target / _PACKAGES) else ""
    return InstalledCode(packages.search_path(target / _PACKAGES), apart, warnings)


def digest_inputs(archives: Sequence[Path], interpreter: str) -> str:
    """Of all that decides what is installed: the archives, and the libraries that there are already."""
    found = hashlib.sha256()
    for archive in archives:
        found.update(f"{archive.name} {hashlib.sha256(archive.read_bytes()).hexdigest()}\n".encode())
    for text in (_FORMAT, interpreter, *packages.describe_install_environment(interpreter or sys.executable)):
        found.update(f"{text}\n".encode())
    return found.hexdigest()


def _build_entry(
    archives: Sequence[Path], work: Path, interpreter: str, timeout: float | None, runtime_version: str
) -> None:
    told = _install_packages(archives, work, interpreter, timeout, runtime_version)
    (work / _WARNINGS_FILE).write_bytes(msgspec.json.encode(told))


def _install_packages(
    archives: Sequence[Path], work: Path, interpreter: str, timeout: float | None, runtime_version: str
) -> tuple[str, ...]:
    """Install, and return what the owner of the packages should know."""
    environment = work / _ENVIRONMENT
    if interpreter:
        try:
            packages.install_in_environment(archives, environment, interpreter, timeout)
        except LoadFailed as error:
            offer = packages.find_compatible_python(archives, work, timeout)
            if offer is None:
                raise
            raise LoadFailed(f"{error.message} {_advise_runtime(offer, runtime_version)}") from error
        return ()
    try:
        return packages.install_packages(archives, work / _PACKAGES, timeout).warnings
    except packages.PackageConflict as conflict:
        logger.info("an environment of its own is made: %s", conflict.message)
        try:
            packages.install_in_environment(archives, environment, sys.executable, timeout)
        except LoadFailed as error:
            offer = packages.find_compatible_python(archives, work, timeout)
            raise LoadFailed(
                f"{conflict.message} An environment of its own failed too: {error.message} "
                f"{_advise_runtime(offer, runtime_version)}"
            ) from error
    return (_ISOLATED_WARNING,)


def _advise_runtime(offer: packages.CompatiblePython | None, runtime_version: str) -> str:
    """What to type so that the packages can be installed."""
    if offer is None:
        return (
            "Let the packages accept the server's versions, or have an interpreter compute them that has "
            f"what they need: {_format_runtime_command(runtime_version, '--python PATH')}."
        )
    try:
        python, place = python_environments.find_python(offer.python), ""
    except InvalidArgument:
        python, place = "PATH", f", PATH being a Python {offer.python}"
    wanted = " ".join(f"--with '{requirement}'" for requirement in offer.requirements)
    return (
        f"For Python {offer.python} there is {', '.join(offer.requirements)}: "
        f"{_format_runtime_command(runtime_version, f'--create --python {python} {wanted}')}{place}. If the packages do not "
        "need these versions in order to predict, let them accept the server's."
    )


def _format_runtime_command(runtime_version: str, options: str) -> str:
    """How a version gets an interpreter that has what it needs."""
    if runtime_version:
        return f"`pilotlight runtimes add {runtime_version} {options}`, and create the version again"
    return (
        f"`pilotlight runtimes add VERSION {options}`, and create the version with that VERSION as its "
        "runtimeVersion"
    )
