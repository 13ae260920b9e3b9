"""Copies the folder that a package is built from, without what is no source."""

from __future__ import annotations

import fnmatch
import os
import shutil
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from serving.errors import InvalidArgument

# At any depth: version control, environments, caches, and what builds leave.
_IGNORED = (
    ".git", ".hg", ".svn", ".venv", ".tox", ".nox", ".eggs", "*.egg-info", "__pycache__", "*.pyc",
    ".mypy_cache", ".pytest_cache", ".ruff_cache", ".ipynb_checkpoints", "node_modules",
)  # fmt: skip
# In the folder itself: what a build before has put there would come into the next one.
_OUTPUTS = ("build", "dist")
# By this file an environment is known, whatever its name is.
_ENVIRONMENT_FILE = "pyvenv.cfg"
_MAX_BYTES, _MAX_FILES = 512 << 20, 20_000


@dataclass(frozen=True, slots=True)
class _SourceFile:
    """A file with its path below the folder."""

    path: Path
    size: int


def copy_source_tree(folder: Path, target: Path, *, keep: Path, leave_out: Path | None = None) -> None:
    """Copy a folder of up to 512 MiB; links become what they lead to.

    `keep` is copied whatever it is called, `leave_out` is not. Raises InvalidArgument.
    """
    size = 0
    files: list[_SourceFile] = []
    for file in _list_files(folder, keep=keep, leave_out=leave_out):
        size += file.size
        files.append(file)
        if size > _MAX_BYTES or len(files) > _MAX_FILES:
            raise _too_large(folder, files)
    for file in files:
        copied = target / file.path
        copied.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copy2(folder / file.path, copied)
        except OSError as error:
            raise InvalidArgument(f"{folder / file.path} cannot be read: {error.strerror}.") from error


def _list_files(folder: Path, *, keep: Path, leave_out: Path | None) -> Iterator[_SourceFile]:
    entered: set[Path] = set()

    def is_wanted(path: Path) -> bool:
        if path == keep:
            return True
        if path == leave_out or (path.parent == folder and path.name in _OUTPUTS):
            return False
        return not any(fnmatch.fnmatchcase(path.name, pattern) for pattern in _IGNORED)

    def list_below(parent: Path) -> Iterator[_SourceFile]:
        # A link may lead to a folder that it is in.
        real = parent.resolve()
        if real in entered:
            return
        entered.add(real)
        for entry in sorted(os.scandir(parent), key=lambda one: one.name):
            path = Path(entry.path)
            if not is_wanted(path):
                continue
            try:
                info = entry.stat()
            except OSError:  # a link to nothing
                continue
            if stat.S_ISDIR(info.st_mode):
                if not (path / _ENVIRONMENT_FILE).exists():
                    yield from list_below(path)
            elif stat.S_ISREG(info.st_mode):
                yield _SourceFile(path.relative_to(folder), info.st_size)
        entered.discard(real)

    try:
        yield from list_below(folder)
    except OSError as error:
        raise InvalidArgument(f"{error.filename} cannot be read: {error.strerror}.") from error


def _too_large(folder: Path, files: list[_SourceFile]) -> InvalidArgument:
    sizes, counts = Counter[str](), Counter[str]()
    for file in files:
        sizes[file.path.parts[0]] += file.size
        counts[file.path.parts[0]] += 1
    weights = sizes if sum(sizes.values()) > _MAX_BYTES else counts
    largest, _ = weights.most_common(1)[0]
    return InvalidArgument(
        f"--package-path: {folder}, from which the package is built, has more than {_MAX_BYTES >> 20} MiB or "
        f"{_MAX_FILES:,} files, most of them in {largest}. Move what is no source elsewhere, or build an "
        "archive yourself and give it as --packages."
    )
