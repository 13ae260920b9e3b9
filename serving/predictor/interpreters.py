"""Interpreters for runtime versions: which Python computes models that ask for a `runtimeVersion`.

They come from the setting `runtime` and from the file that `pilotlight runtimes` keeps in the state folder;
the setting wins. A runtime version that is in neither is served by the server's own libraries.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from serving.errors import InvalidArgument, Unavailable

INTERPRETERS_FILE = "runtimes.json"
_VERSION = re.compile(r"\d+\.\d+(\.\d+)?")


class InterpreterRegistry:
    """The interpreters of a server. The file is read again when it has changed."""

    def __init__(self, given: Mapping[str, str], state_dir: Path) -> None:
        self._configured = given
        self._file = state_dir / INTERPRETERS_FILE
        self._cached_file: tuple[object, Mapping[str, str]] = (None, {})

    def list_paths(self) -> Mapping[str, str]:
        """Paths of interpreters by runtime version. Raises InvalidArgument for a damaged file."""
        try:
            stat = self._file.stat()
        except FileNotFoundError:
            return self._configured
        seen = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
        if self._cached_file[0] != seen:
            self._cached_file = (seen, read_interpreters(self._file))
        return {**self._cached_file[1], **self._configured}

    def find_interpreter(self, runtime_version: str) -> str:
        """The interpreter for a runtime version, "" for the server's own."""
        return self.list_paths().get(runtime_version, "") if runtime_version else ""


def parse_interpreters(entries: Iterable[str]) -> dict[str, str]:
    """What the setting `runtime` says, each entry VERSION=PYTHON. Raises InvalidArgument naming it."""
    found: dict[str, str] = {}
    for entry in entries:
        version, separator, python = entry.partition("=")
        if not separator or not python:
            raise InvalidArgument(
                f"The setting runtime must be VERSION=PYTHON, as 1.15=/usr/bin/python3.7; it is {entry!r}."
            )
        try:
            found[check_runtime_version(version)] = resolve_interpreter_path(python)
        except InvalidArgument as error:
            raise InvalidArgument(f"The setting runtime has {entry!r}: {error.message}") from error
    return found


def check_runtime_version(version: str) -> str:
    """The runtime version itself. Raises InvalidArgument for what is none."""
    if not _VERSION.fullmatch(version):
        raise InvalidArgument(f"{version!r} is no runtime version; one looks like 1.15 or 2.11.")
    return version


def resolve_interpreter_path(python: str) -> str:
    """The absolute path of an interpreter; a virtual environment may be named by its folder.

    Raises InvalidArgument if there is none.
    """
    path = Path(python).expanduser().absolute()
    if path.is_dir():
        path = path / "bin" / "python"
    # Not resolved: an interpreter finds its environment by the path that it is started by.
    if not (path.is_file() and os.access(path, os.X_OK)):
        raise InvalidArgument(f"There is no interpreter {path} that could be run.")
    return str(path)


def read_interpreters(file: Path) -> dict[str, str]:
    """What a file says. Raises InvalidArgument if it is damaged."""
    try:
        found = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"Cannot read the runtimes in {file}: {error}") from error
    if not (isinstance(found, dict) and all(isinstance(path, str) for path in found.values())):
        raise InvalidArgument(f"Cannot read the runtimes in {file}: it must map versions to paths.")
    return found


def write_interpreters(file: Path, interpreters: Mapping[str, str]) -> None:
    """Replace what a file says, at once. Raises Unavailable."""
    new = file.with_suffix(".new")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new.write_text(json.dumps(dict(sorted(interpreters.items())), indent=2) + "\n")
        new.replace(file)
    except OSError as error:
        raise Unavailable(f"Cannot write {file}: {error.strerror}.") from error
