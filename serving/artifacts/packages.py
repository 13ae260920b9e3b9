"""Installs a user's package archives into a folder, on top of the server's own libraries.

Each source archive is built into a wheel; pip then plans with the server's versions pinned, and only the
difference is installed. pip runs as a process that sees the environment in which models run, and never
writes to it.
"""

from __future__ import annotations

import email
import json
import logging
import os
import pkgutil
import re
import shutil
import site
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from serving.artifacts.archive_check import BrokenArchive, check_archive
from serving.artifacts.child_environment import sanitize_environment
from serving.artifacts.pip_output import explain_failure, is_conflict
from serving.errors import LoadFailed

logger = logging.getLogger(__name__)

# What an operator may set: where packages come from. The rest of pip's environment (another target,
# --user, --upgrade, ...) would change what an install means.
_INDEX_VARIABLES = {
    "PIP_CONFIG_FILE", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX", "PIP_FIND_LINKS",
    "PIP_TRUSTED_HOST", "PIP_CERT", "PIP_CLIENT_CERT", "PIP_PROXY", "PIP_KEYRING_PROVIDER",
}  # fmt: skip
# And what reaching it and compiling take.
_BUILD_VARIABLES = {
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "REQUESTS_CA_BUNDLE",
    "CC", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "PKG_CONFIG_PATH", "SOURCE_DATE_EPOCH",
}  # fmt: skip
_OPTIONS = (
    "--disable-pip-version-check", "--no-input", "--no-color", "--no-build-isolation",
    # pip would keep wheels by the path of their source, where the next archive may be another one.
    "--no-cache-dir",
    # An index that cannot be reached shall cost seconds, not minutes.
    "--retries=1", "--timeout=10",
)  # fmt: skip
# Also for the runs of pip that a run of pip starts, which get no options. Nobody can follow the advice.
_PIP_VARIABLES = {
    "PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_ROOT_USER_ACTION": "ignore", "PYTHONUTF8": "1",
}  # fmt: skip
# What no package may hide from the server, which has modules of these names itself.
_SERVER_MODULES = frozenset({"autoscaler", "batch", "serving", "training", "tuning"})
# The time of all files in wheels that are built of folders, in seconds: a zip file knows none before 1980.
_WHEEL_TIME = "315619200"
# Those that compute models, the newest first.
_PYTHONS = tuple(f"3.{minor}" for minor in range(13, 6, -1))
# For any Python from 3.6 on.
_VERSION_AND_FOLDERS = (
    "import site, sys; print(' '.join(sys.version.split()), *site.getsitepackages(), sep='\\n')"
)


class PackageConflict(LoadFailed):
    """The packages need other versions than the server has."""


@dataclass(frozen=True, slots=True)
class InstallResult:
    """Installed packages as "name==version", and warnings for the user."""

    packages: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CompatiblePython:
    """A Python, such as "3.10", for which an index has the required versions."""

    python: str
    requirements: tuple[str, ...]


def check_archives(archives: Sequence[Path], folder: Path, *, check_platform: bool) -> None:
    """Find out without pip what is wrong with archives that are to be installed on the disk of `folder`.

    `check_platform`: they are for this Python. Raises LoadFailed naming the archive.
    """
    free_bytes = shutil.disk_usage(folder).free
    for archive in archives:
        try:
            check_archive(archive, free_bytes, check_platform=check_platform)
        except BrokenArchive as error:
            raise _load_failed([archive], str(error)) from error


def install_packages(archives: Sequence[Path], target: Path, timeout: float | None = None) -> InstallResult:
    """Install source archives or wheels into `target`, with dependencies that the server lacks.

    `target` is a new or empty folder, `timeout` the seconds of each run of pip. Raises LoadFailed naming the
    archive that cannot be built, or not in time, or whose dependencies are missing, and PackageConflict.
    """
    target.mkdir(parents=True, exist_ok=True)
    # Beside the target: what a kill leaves there goes with the rest of a half-made version.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as folder:
        work = Path(folder)
        pip = _Pip(work, timeout)
        wheels = [
            _convert_to_wheel(archive.absolute(), work / f"archive-{n}", pip)
            for n, archive in enumerate(archives)
        ]
        _check_names_differ(archives, wheels)
        try:
            plan = _plan_install(wheels, work, pip)
            if plan:
                pip.run("install", "--no-deps", f"--target={target}", *(item.requirement for item in plan))
        except _PipFailed as failure:
            reason = explain_failure(str(failure))
            named = [
                archive
                for archive, wheel in zip(archives, wheels, strict=True)
                if _mentions_package(reason, wheel)
            ]
            kind = PackageConflict if is_conflict(str(failure)) else LoadFailed
            raise _load_failed(named or archives, reason, kind) from failure
    return InstallResult(
        tuple(f"{item.name}=={item.version}" for item in plan), tuple(_describe_missing_modules(target))
    )


def build_wheel(source: Path, folder: Path) -> Path:
    """Build a folder with a setup.py or a pyproject.toml into a wheel in `folder`, which is new.

    The same source makes the same wheel. Raises LoadFailed.
    """
    folder.mkdir(parents=True)
    try:
        _Pip(folder.parent, None).run(
            "wheel", "--no-deps", f"--wheel-dir={folder}", str(source), SOURCE_DATE_EPOCH=_WHEEL_TIME
        )
    except _PipFailed as failure:
        raise _load_failed([source], explain_failure(str(failure))) from failure
    return next(folder.glob("*.whl"))


def install_in_environment(
    archives: Sequence[Path], environment: Path, interpreter: str, timeout: float | None = None
) -> str:
    """Install archives and their dependencies into a virtual environment; returns its interpreter.

    Other modules come from the `interpreter` that it is made of. Raises LoadFailed naming the archives.
    """
    python = interpreter_of(environment)
    with tempfile.TemporaryDirectory(dir=environment.parent, prefix=".build-") as work:
        pip = _Pip(Path(work), timeout, python)
        try:
            pip.run_program(interpreter, "-m", "venv", str(environment))
            theirs = _list_site_folders(interpreter)
            # Behind the environment's own folder: its packages come first. Modules that an archive lists as
            # `scripts` land in `bin`; the environment will be copied to another place.
            own = Path(_list_site_folders(python)[0])
            scripts = os.path.relpath(environment / "bin", own)
            (own / "interpreter.pth").write_text("".join(f"{folder}\n" for folder in (scripts, *theirs)))
            _run_build(pip, Path(work), "install", *map(str, archives))
        except _PipFailed as failure:
            raise _load_failed(archives, explain_failure(str(failure))) from failure
    return python


def find_compatible_python(
    archives: Sequence[Path], folder: Path, timeout: float | None = None
) -> CompatiblePython | None:
    """The newest Python for which an index has the versions that archives need instead of the server's.

    `folder` gets temporary files. Archives that cannot be built count as needing nothing.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as work:
        pip = _Pip(Path(work), timeout)
        try:
            wheels = [
                _convert_to_wheel(path.absolute(), Path(work, f"archive-{n}"), pip)
                for n, path in enumerate(archives)
            ]
        except LoadFailed:
            return None
        wanted = [requirement for wheel in wheels for requirement in _find_unmet_requirements(wheel)]
        for python in _PYTHONS if wanted else ():
            if all(_is_in_index(requirement, python, pip) for requirement in wanted):
                texts = dict.fromkeys(f"{one.name}{one.specifier}" for one in wanted)
                return CompatiblePython(python, tuple(texts))
    return None


def _find_unmet_requirements(wheel: Path) -> Iterator[Requirement]:
    """Requirements of a wheel that the server's versions do not meet."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        headers = email.message_from_bytes(archive.read(name))
    own = _installed_versions()
    for text in headers.get_all("Requires-Dist", ()):
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = own.get(canonicalize_name(requirement.name))
        if version and not requirement.specifier.contains(version, prereleases=True):
            yield requirement


def _is_in_index(requirement: Requirement, python: str, pip: _Pip) -> bool:
    """Whether an index lists a wheel of a suitable version; nothing is downloaded."""
    options = ("--disable-pip-version-check", "--no-input", "--no-color", "--retries=1", "--timeout=10")
    asked = (f"--python-version={python}", "--only-binary=:all:", requirement.name)
    try:
        said = pip.run_program(sys.executable, "-m", "pip", "index", "versions", *options, *asked)
    except _PipFailed:
        return False
    listed = re.search(r"Available versions: (.+)", said)
    return bool(listed and any(requirement.specifier.filter(listed[1].split(", "))))


def interpreter_of(environment: Path) -> str:
    return str(environment / "bin" / "python")


def describe_install_environment(interpreter: str) -> Iterator[str]:
    """What an install depends on besides archives: installed libraries, and package indexes."""
    yield interpreter
    yield from list_libraries(interpreter)
    for name in sorted(_INDEX_VARIABLES & os.environ.keys()):
        yield f"{name}={os.environ[name]}"


def list_libraries(interpreter: str) -> list[str]:
    """The version of a Python, and the libraries that it has."""
    return sorted(_list_distributions(interpreter))


def _list_distributions(interpreter: str) -> Iterator[str]:
    """Read from names of files: nothing else is as quick."""
    if interpreter == sys.executable:
        version, folders = sys.version, sys.path
    else:
        version, *folders = _inspect_interpreter(interpreter)
    yield version
    for folder in folders:
        yield from (path.name for path in Path(folder).glob("*.*-info"))


def _list_site_folders(interpreter: str) -> list[str]:
    return _inspect_interpreter(interpreter)[1:]


def _inspect_interpreter(interpreter: str) -> list[str]:
    """Its version, and the folders of its packages. Raises LoadFailed if it does not run."""
    try:
        with tempfile.TemporaryDirectory() as work:
            return _Pip(Path(work), None).run_program(interpreter, "-c", _VERSION_AND_FOLDERS).splitlines()
    except (OSError, _PipFailed) as error:
        raise LoadFailed(f"The interpreter {interpreter} does not run: {error}") from error


def search_path(target: Path) -> tuple[Path, ...]:
    """The folders with modules of an install into `target`.

    AI Platform's own example of a custom routine lists its modules as `scripts`, which are installed into
    `bin`.
    """
    return tuple(folder for folder in (target, target / "bin") if folder.is_dir())


def shadows_server_modules(target: Path) -> bool:
    """Whether a module in the folder has the name of one of the server's, and would hide it."""
    return any(
        module.name in _SERVER_MODULES for module in pkgutil.iter_modules(map(str, search_path(target)))
    )


# ---- pip ----


class _PipFailed(Exception):
    """pip failed; the message is its output."""


@dataclass(frozen=True, slots=True)
class _Pip:
    """Runs pip.

    `work` holds its temporary files, and its output: processes that a build leaves behind could hold a pipe
    open. `timeout` is in seconds for each run, None for none. `python` is the interpreter whose pip is run.
    """

    work: Path
    timeout: float | None
    python: str = sys.executable

    def run(self, *arguments: str, cwd: Path | None = None, **variables: str) -> None:
        """Raises _PipFailed."""
        pip = (self.python, "-m", "pip")
        self.run_program(*pip, arguments[0], *_OPTIONS, *arguments[1:], cwd=cwd, **variables)

    def run_program(self, *command: str, cwd: Path | None = None, **variables: str) -> str:
        """Run a program that may run code of archives; returns its output. Raises _PipFailed."""
        # The environment is passed on here, not read. Archives are built by their own code, which shall not
        # find the credentials of this process.
        environment = sanitize_environment(os.environ, ",".join((*_INDEX_VARIABLES, *_BUILD_VARIABLES)))
        environment |= _PIP_VARIABLES | variables
        environment["TMPDIR"] = str(self.work)
        if not site.ENABLE_USER_SITE:
            # pip shall see what this process sees, and that may come from a command-line option.
            environment["PYTHONNOUSERSITE"] = "1"
        with tempfile.TemporaryFile(dir=self.work) as output:
            try:
                done = subprocess.run(
                    command,
                    cwd=cwd or self.work,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    check=False,
                    timeout=self.timeout,
                )
            except subprocess.TimeoutExpired as error:
                raise _PipFailed(
                    f"ERROR: it was not done after {self.timeout:g} s, and was ended (setting build_timeout)."
                ) from error
            output.seek(0)
            said = output.read().decode(errors="replace")
        logger.debug("%s", said)
        if done.returncode:
            raise _PipFailed(said)
        return said


def _convert_to_wheel(archive: Path, folder: Path, pip: _Pip) -> Path:
    """The archive as a wheel, built in `folder` if it is not one."""
    if archive.suffix == ".whl":
        return archive
    folder.mkdir()
    try:
        _run_build(pip, folder, "wheel", "--no-deps", f"--wheel-dir={folder}", str(archive))
    except _PipFailed as failure:
        hint = "If it builds on your machine, give the wheel instead."
        raise _load_failed([archive], f"{explain_failure(str(failure))}\n{hint}") from failure
    return next(folder.glob("*.whl"))


def _run_build(pip: _Pip, folder: Path, *arguments: str) -> None:
    """Run pip to build archives, including those that list only scripts. Raises _PipFailed."""
    try:
        pip.run(*arguments, cwd=folder)
    except _PipFailed as failure:
        if "discovered in a flat-layout" not in str(failure):
            raise
        # Before version 61 setuptools did not look for modules by itself, and archives of that time may
        # list scripts alone. It does not look either when told that there are no modules.
        settings = folder / "setup.cfg"
        settings.write_text("[options]\npy_modules =\n")
        pip.run(*arguments, cwd=folder, DIST_EXTRA_CONFIG=str(settings))


def _check_names_differ(archives: Sequence[Path], wheels: Sequence[Path]) -> None:
    """Raises LoadFailed if two archives hold the same distribution."""
    found: dict[str, Path] = {}
    for archive, wheel in zip(archives, wheels, strict=True):
        name, version = wheel.name.split("-")[:2]
        other = found.setdefault(canonicalize_name(name), archive)
        if other is not archive:
            reason = f"both hold the package {name} (here {version}). Leave one of them out."
            raise _load_failed([other, archive], reason)


@dataclass(frozen=True, slots=True)
class _PlannedPackage:
    """A package to install; `requirement` is the argument for pip."""

    name: str
    version: str
    requirement: str


def _plan_install(wheels: Sequence[Path], work: Path, pip: _Pip) -> list[_PlannedPackage]:
    """What installing the wheels would add to this environment without changing it."""
    pins = work / "pins.txt"
    pins.write_text("".join(f"{name}=={version}\n" for name, version in _installed_versions().items()))
    report = work / "report.json"
    wanted = (str(wheel) for wheel in wheels)
    pip.run("install", "--dry-run", f"--report={report}", f"--constraint={pins}", *wanted)
    return [_parse_report_entry(entry) for entry in json.loads(report.read_bytes())["install"]]


def _installed_versions() -> dict[str, str]:
    """Version of each installed distribution; of two with one name, Python uses the first."""
    found: dict[str, str] = {}
    for distribution in metadata.distributions():
        # A broken or half-removed distribution has neither, or one that is no version.
        name, version = distribution.metadata["Name"], distribution.metadata["Version"]
        if name and _is_version(version):
            found.setdefault(canonicalize_name(name), version)
    return found


def _is_version(text: str | None) -> bool:
    try:
        return bool(text and Version(text))
    except InvalidVersion:
        return False


def _parse_report_entry(entry: dict[str, Any]) -> _PlannedPackage:
    name, version = entry["metadata"]["name"], entry["metadata"]["version"]
    # The report hides passwords, so a package from an index is asked for by its version, not by its URL.
    url = urlsplit(entry["download_info"]["url"])
    return _PlannedPackage(name, version, unquote(url.path) if entry["is_direct"] else f"{name}=={version}")


# ---- what went wrong, and what might ----


def _load_failed(archives: Sequence[Path], reason: str, kind: type[LoadFailed] = LoadFailed) -> LoadFailed:
    names = ", ".join(archive.name for archive in archives)
    return kind(f"User-provided package {names} failed to install: {reason}")


def _mentions_package(text: str, wheel: Path) -> bool:
    """Whether a text names the package in `wheel`."""
    name = canonicalize_name(wheel.name.partition("-")[0])
    return bool(re.search(rf"(?<![a-z0-9]){re.escape(name)}(?![a-z0-9])", canonicalize_name(text)))


def _describe_missing_modules(target: Path) -> Iterator[str]:
    if not any(file.suffix in {".py", ".pyc", ".so"} for file in target.rglob("*")):
        yield "The packages hold no Python module. Name them in setup.py: py_modules, packages or scripts."


def describe_shadowed_packages(folders: Iterable[Path]) -> Iterator[str]:
    """Warnings for whoever runs installed packages where the server's own modules are found first."""
    for module in pkgutil.iter_modules(map(str, folders)):
        spec = None if module.name in _SERVER_MODULES else _find_server_module(module.name)
        # A folder without __init__.py has no loader, and hides nothing.
        if spec and spec.loader:
            yield (
                f"The server has a module {module.name} of its own ({spec.origin}), which is found first. "
                "Rename the one in the packages if the model needs it."
            )


def _find_server_module(name: str) -> ModuleSpec | None:
    try:
        return find_spec(name)
    except ValueError:  # A loaded module of that name has no __spec__.
        return None
