"""Checks users' package archives before pip sees them: what is damaged or unsafe, and what to do about it.

Nothing of an archive is run or written.
"""

from __future__ import annotations

import email
import lzma
import posixpath
import struct
import sys
import tarfile
import tomllib
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import sys_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

_TarMode = Literal["r:", "r:gz", "r:bz2", "r:xz"]

# What pip takes, and how tarfile opens it.
_TAR_MODES: Mapping[str, _TarMode] = {
    ".tar.gz": "r:gz", ".tgz": "r:gz", ".tar": "r:", ".tar.bz2": "r:bz2", ".tbz": "r:bz2",
    ".tar.xz": "r:xz", ".txz": "r:xz", ".tlz": "r:xz", ".tar.lz": "r:xz", ".tar.lzma": "r:xz",
}  # fmt: skip
_ZIP_SUFFIXES = (".whl", ".zip")
_ZIP = "a zip archive"
_FORMATS: Mapping[_TarMode, str] = {
    "r:": "a tar archive",
    "r:gz": "a gzip file",
    "r:bz2": "a bzip2 file",
    "r:xz": "an xz file",
}
_WEB_PAGE = "a web page"
# The first bytes of files, and what they are.
_MAGICS = (
    (b"PK", _ZIP),
    (b"\x1f\x8b", _FORMATS["r:gz"]),
    (b"BZh", _FORMATS["r:bz2"]),
    (b"\xfd7zXZ", _FORMATS["r:xz"]),
    (b"<", _WEB_PAGE),
)
_TAR_MAGIC, _TAR_MAGIC_START = b"ustar", 257
# All that reading a damaged archive raises.
_READ_ERRORS = (
    tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, OSError,
    ValueError, OverflowError, NotImplementedError,
)  # fmt: skip
_MAX_FILES = 200_000
_MAX_UNPACKED_BYTES = 8 << 30
# Of a file that describes the package.
_MAX_DESCRIPTION_BYTES = 4 << 20
# Bytes of one name, in all file systems.
_MAX_NAME_BYTES = 255
_ENCRYPTED_FLAG = 0x1
_BUILD_FILES = ("setup.py", "pyproject.toml")
_WHEEL_FILES = ("METADATA", "WHEEL", "RECORD")
_COPY_AGAIN = "Copy it again, and see that it is copied whole."
_BUILD_AGAIN = "Build it again, as with `python -m build`."

ReadFile = Callable[[str], bytes]


class BrokenArchive(Exception):
    """An archive that cannot be installed; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A file or folder of an archive; `link` is where a link leads, from the archive's top."""

    name: str
    size: int
    link: str = ""
    is_special: bool = False


def check_archive(path: Path, free_bytes: int, *, check_platform: bool) -> None:
    """Check a source archive or a wheel by the list of its files and by what it says of itself.

    `free_bytes` is the room that there is for its files. `check_platform`: it is for this Python. Raises
    BrokenArchive.
    """
    name = path.name.lower()
    mode = next((mode for suffix, mode in _TAR_MODES.items() if name.endswith(suffix)), None)
    if mode is None and not name.endswith(_ZIP_SUFFIXES):
        suffixes = ", ".join((*_ZIP_SUFFIXES, *_TAR_MODES))
        raise BrokenArchive(f"its name ends in none of {suffixes}. {_BUILD_AGAIN}")
    if ";" in name:
        raise BrokenArchive("pip takes what follows a `;` in a name for a condition. Rename it.")
    if not path.stat().st_size:
        raise BrokenArchive(f"it is empty. {_COPY_AGAIN}")
    try:
        if mode is not None:
            _check_tar(path, mode, free_bytes)
        elif name.endswith(".whl"):
            _check_wheel(path, free_bytes, check_platform=check_platform)
        else:
            _check_zip(path, free_bytes)
    except _READ_ERRORS as error:
        expected = _ZIP if mode is None else _FORMATS[mode]
        raise BrokenArchive(_explain_read_error(path, expected, error)) from error


def _explain_read_error(path: Path, expected: str, error: Exception) -> str:
    found = _recognize_format(path)
    if found == expected:
        return f"it is damaged, or ends too early ({error}). {_COPY_AGAIN}"
    if found == _WEB_PAGE:
        return f"it is not {expected}, but a web page, as one that asks to sign in. Download the file again."
    if found:
        return f"it is {found}, and its name says that it is {expected}. Give it the name that fits."
    return f"it is not {expected}, nor any other archive. {_COPY_AGAIN}"


def _recognize_format(path: Path) -> str:
    """What a file is by its first bytes; "" if that is not known."""
    with path.open("rb") as file:
        head = file.read(_TAR_MAGIC_START + len(_TAR_MAGIC))
    if head[_TAR_MAGIC_START:] == _TAR_MAGIC:
        return _FORMATS["r:"]
    return next((found for magic, found in _MAGICS if head.lstrip().startswith(magic)), "")


# ---- entries


def _check_entries(entries: Iterable[_Entry], free_bytes: int) -> dict[str, str]:
    """Returns the names of the entries by their normal form; raises BrokenArchive at the first bad one."""
    names: dict[str, str] = {}
    size, room = 0, min(free_bytes, _MAX_UNPACKED_BYTES)
    for number, entry in enumerate(entries, 1):
        _check_entry(entry)
        names[posixpath.normpath(entry.name)] = entry.name
        size += entry.size
        if size > room:
            raise BrokenArchive(
                f"its files take more than {room >> 20} MiB, for which there is no room. Leave data out of "
                "it, and have the program read them from where they are."
            )
        if number > _MAX_FILES:
            raise BrokenArchive(f"it has more than {_MAX_FILES} files. Leave data out of it.")
    if not names:
        raise BrokenArchive(f"there is no file in it. {_BUILD_AGAIN}")
    return names


def _check_entry(entry: _Entry) -> None:
    shown = ascii(entry.name[:100])
    if _is_outside(entry.name):
        raise BrokenArchive(f"it has a file {shown}, outside of the archive's own folder. {_BUILD_AGAIN}")
    if entry.link and _is_outside(entry.link):
        raise BrokenArchive(f"{shown} is a link that leads out of the archive. Put the file itself there.")
    if entry.is_special:
        raise BrokenArchive(f"{shown} is neither a file nor a folder. Leave it out.")
    if any(len(part.encode(errors="replace")) > _MAX_NAME_BYTES for part in entry.name.split("/")):
        raise BrokenArchive(f"the name of a file is too long: {shown}... Rename it.")
    if entry.name.endswith(".py") and not _is_unicode(entry.name):
        raise BrokenArchive(f"the name of the module {shown} is not UTF-8. Rename it.")


def _is_outside(name: str) -> bool:
    return posixpath.isabs(name) or posixpath.normpath(name).split("/")[0] == ".."


def _is_unicode(name: str) -> bool:
    """Whether a name of a tar archive, with surrogates for other bytes, was UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


# ---- source archives


def _check_tar(path: Path, mode: _TarMode, free_bytes: int) -> None:
    with tarfile.open(path, mode, encoding="utf-8") as archive:
        names = _check_entries(map(_read_tar_entry, archive), free_bytes)

        def read(name: str) -> bytes:
            file = archive.extractfile(name)
            return b"" if file is None else file.read(_MAX_DESCRIPTION_BYTES)

        _check_source(names, read)


def _read_tar_entry(member: tarfile.TarInfo) -> _Entry:
    link = ""
    if member.issym():
        link = posixpath.join(posixpath.dirname(member.name), member.linkname)
    elif member.islnk():
        link = member.linkname
    is_special = not (member.isfile() or member.isdir() or link)
    return _Entry(member.name, member.size if member.isfile() else 0, link, is_special)


def _check_zip(path: Path, free_bytes: int) -> None:
    with zipfile.ZipFile(path) as archive:
        _check_source(_check_zip_entries(archive, free_bytes), _reader_of(archive))


def _check_zip_entries(archive: zipfile.ZipFile, free_bytes: int) -> dict[str, str]:
    infos = archive.infolist()
    if any(info.flag_bits & _ENCRYPTED_FLAG for info in infos):
        raise BrokenArchive("its files are encrypted. Build it again without a password.")
    return _check_entries((_Entry(info.filename, info.file_size) for info in infos), free_bytes)


def _reader_of(archive: zipfile.ZipFile) -> ReadFile:
    def read(name: str) -> bytes:
        with archive.open(name) as file:
            return file.read(_MAX_DESCRIPTION_BYTES)

    return read


def _check_source(names: dict[str, str], read: ReadFile) -> None:
    """pip builds the folder that all files are in, or the archive's top."""
    tops = {name.split("/")[0] for name in names if name != "."}
    top = f"{next(iter(tops))}/" if len(tops) == 1 and any("/" in name for name in names) else ""
    if not any(f"{top}{file}" in names for file in _BUILD_FILES):
        deeper = sorted((name for name in names if posixpath.basename(name) in _BUILD_FILES), key=len)
        folder = posixpath.dirname(deeper[0]) if deeper else ""
        raise BrokenArchive(
            f"there is neither setup.py nor pyproject.toml in {top or 'it'}. "
            + (f"Make an archive of the folder {folder}." if folder else _BUILD_AGAIN)
        )
    project = names.get(f"{top}pyproject.toml")
    if project is not None:
        try:
            tomllib.loads(read(project).decode())
        except ValueError as error:
            raise BrokenArchive(f"its pyproject.toml cannot be read: {error}. Correct it.") from error


# ---- wheels


def _check_wheel(path: Path, free_bytes: int, *, check_platform: bool) -> None:
    project = _check_wheel_name(path.name, check_platform=check_platform)
    with zipfile.ZipFile(path) as archive:
        names = _check_zip_entries(archive, free_bytes)
        folder = _find_dist_info(sorted(names), project)
        read = _reader_of(archive)
        metadata = _read_headers(read(names[f"{folder}/METADATA"]))
        wheel = _read_headers(read(names[f"{folder}/WHEEL"]))
    if canonicalize_name(metadata.get("Name", "")) != project:
        raise BrokenArchive(
            f"its METADATA are of {metadata.get('Name')!r}, and its name says {project!r}. {_BUILD_AGAIN}"
        )
    for text in metadata.get_all("Requires-Dist", ()):
        _check_requirement(text)
    if wheel.get("Wheel-Version", "").split(".")[0] != "1":
        raise BrokenArchive(
            f"it is a wheel of version {wheel.get('Wheel-Version')!r}: pip knows version 1. {_BUILD_AGAIN}"
        )


def _check_wheel_name(name: str, *, check_platform: bool) -> str:
    """Returns the normal form of the name of its distribution."""
    try:
        project, _, _, tags = parse_wheel_filename(name)
    except InvalidWheelFilename as error:
        raise BrokenArchive(
            f"that is no name of a wheel ({error}). Give it back the name that it was built with, as "
            "NAME-1.0-py3-none-any.whl."
        ) from error
    if check_platform and tags.isdisjoint(sys_tags()):
        own = next(iter(sys_tags()))
        raise BrokenArchive(
            f"it is built for {', '.join(sorted(map(str, tags)))}, and the server has Python "
            f"{sys.version_info.major}.{sys.version_info.minor} ({own}). Give a wheel for that, or a source "
            "archive."
        )
    return project


def _find_dist_info(names: Sequence[str], project: str) -> str:
    """The folder in a wheel that tells of it."""
    tops = {name.split("/")[0] for name in names if "/" in name}
    folders = sorted(top for top in tops if top.endswith(".dist-info"))
    if len(folders) != 1:
        raise BrokenArchive(
            f"it is no wheel: of folders NAME.dist-info there is {' and '.join(folders) or 'none'} in it. "
            f"{_BUILD_AGAIN}"
        )
    (folder,) = folders
    if not canonicalize_name(folder).startswith(project):
        raise BrokenArchive(
            f"its files are those of {folder.removesuffix('.dist-info')}, and its name says {project}. Give "
            "it back the name that it was built with."
        )
    missing = [file for file in _WHEEL_FILES if f"{folder}/{file}" not in names]
    if missing:
        raise BrokenArchive(f"its folder {folder} lacks {' and '.join(missing)}. {_BUILD_AGAIN}")
    return folder


def _read_headers(text: bytes) -> Message:
    return email.message_from_bytes(text)


def _check_requirement(text: str) -> None:
    try:
        Requirement(text)
    except InvalidRequirement as error:
        raise BrokenArchive(
            f"what it requires, {text!r}, cannot be read: {str(error).splitlines()[0]}. Correct setup.py "
            "or pyproject.toml."
        ) from error
