"""Which framework packages need, by the texts of their modules and requirements; nothing is run."""

from __future__ import annotations

import re
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from serving.artifacts.storage.file_system import parse_storage_uri
from serving.frameworks import Framework, load_frameworks

# What stands in a line before the name of a package that it imports.
_IMPORTS = r"^[ \t]*(?:from[ \t]+|import[ \t]+(?:[\w.]+(?:[ \t]+as[ \t]+\w+)?[ \t]*,[ \t]*)*)"
# And before the name of one that it requires, in a package's metadata and in lists of requirements.
_REQUIRES = r"^(?:Requires-Dist:)?[ \t]*"
_REQUIREMENT_FILES = frozenset({"METADATA", "PKG-INFO", "requires.txt", "requirements.txt"})
# Larger archives are not read; nor is more of one, which may be packed to a thousandth of its size.
_MOST_ARCHIVE_BYTES, _MOST_BYTES = 64 << 20, 32 << 20


class _Patterns(NamedTuple):
    framework: Framework
    imports: re.Pattern[bytes]
    requires: re.Pattern[bytes]


def find_imported_framework(target: Path) -> Framework | None:
    """The first framework with a pilot for users' code that a module in the folder imports."""
    files = (file for file in target.rglob("*.py") if file.is_file())
    return _find_needed((file.name, file.read_bytes()) for file in files)


def find_archive_framework(uris: Iterable[str]) -> Framework | None:
    """The first framework with a pilot for users' code that wheels or source archives import or require.

    None for archives of another machine, and for those that cannot be read.
    """
    for bucket, path in map(parse_storage_uri, uris):
        try:
            if not bucket and (framework := _find_needed(_read_archive(Path(path)))):
                return framework
        except Exception:  # noqa: S112  a broken archive raises whatever zipfile, tarfile and zlib make of it
            continue
    return None


def _find_needed(texts: Iterable[tuple[str, bytes]]) -> Framework | None:
    """By the names of files and their texts."""
    for name, text in texts:
        for framework, imports, requires in _list_patterns():
            pattern = requires if name in _REQUIREMENT_FILES else imports
            if pattern.search(text):
                return framework
    return None


@lru_cache
def _list_patterns() -> tuple[_Patterns, ...]:
    return tuple(
        _Patterns(
            framework,
            re.compile(rf"{_IMPORTS}(?:{framework.user_imports})\b".encode(), re.MULTILINE),
            re.compile(rf"{_REQUIRES}(?:{framework.user_imports})\b".encode(), re.MULTILINE | re.IGNORECASE),
        )
        for framework in load_frameworks().values()
        if framework.user_imports
    )


def _should_read(name: str) -> bool:
    return name.endswith(".py") or PurePosixPath(name).name in _REQUIREMENT_FILES


def _read_archive(archive: Path) -> Iterator[tuple[str, bytes]]:
    if not archive.is_file() or archive.stat().st_size > _MOST_ARCHIVE_BYTES:
        return iter(())
    return _read_zip(archive) if zipfile.is_zipfile(archive) else _read_tar(archive)


def _read_zip(archive: Path) -> Iterator[tuple[str, bytes]]:
    left = _MOST_BYTES
    with zipfile.ZipFile(archive) as opened:
        for name in filter(_should_read, opened.namelist()):
            with opened.open(name) as file:
                text = file.read(left)
            left -= len(text)
            yield PurePosixPath(name).name, text
            if left <= 0:
                return


def _read_tar(archive: Path) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(archive) as opened:
        for member in opened:
            # What is skipped is unpacked too.
            if member.offset_data + member.size > _MOST_BYTES:
                return
            file = opened.extractfile(member) if _should_read(member.name) else None
            if file is not None:
                yield PurePosixPath(member.name).name, file.read()
