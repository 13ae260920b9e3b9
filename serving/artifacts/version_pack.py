"""The pack of a version: one file with all that its nodes read, for other servers.

It has a line that names the format, the length of the index in eight bytes, the index as JSON, and the
contents of the files in the order of the index. Its name is its SHA-256, which is in the version's record
too: a reader uses nothing of a pack until that is compared.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from serving.errors import InvalidArgument, Unavailable

_MAGIC = b"pilotlight-pack 1\n"
_LENGTH_BYTES = 8
# An index of more is no index: 200,000 files take 30 MB.
_MAX_INDEX_BYTES = 128 << 20
_CHUNK_BYTES = 1 << 20
# A link, or a socket, is where a file was.
_NO_FILE_ERRNOS = (errno.ELOOP, errno.ENXIO)

MODEL, CODE, ARCHIVES, ACCELERATION = "model", "code", "archives", "acceleration"
"""The folders of a version that are packed. Only installed code has links: environments do."""
_FOLDERS = (MODEL, CODE, ARCHIVES, ACCELERATION)
_FILE_MODE, _PROGRAM_MODE, _ANY_EXECUTE = 0o644, 0o755, 0o111


class DamagedPackError(Exception):
    """A file is no pack, or not the one that was asked for; the message says why."""


class PackedFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file, a folder, or a link to `link`; `name` is relative to the version's folder.

    `mtime` is in seconds: compiled modules are compared with that of their source.
    """

    name: str
    size: int = 0
    mtime: int = 0
    is_program: bool = False
    is_folder: bool = False
    link: str = ""


class PackedCode(msgspec.Struct, frozen=True):
    """Installed packages, which are good for the same `platform` only: Python, libraries, machine.

    `interpreter` is the Python that an environment was made of, "" for packages without one.
    """

    platform: str
    interpreter: str = ""


class PackIndex(msgspec.Struct, frozen=True):
    """`code` is None for a version without packages."""

    files: tuple[PackedFile, ...]
    code: PackedCode | None = None


def list_files(folder: Path) -> tuple[PackedFile, ...]:
    """What is packed of a version's folder. Raises InvalidArgument for what cannot be packed."""
    return tuple(
        file for top in _FOLDERS if (folder / top).is_dir() for file in _walk_folder(folder, folder / top)
    )


def write_pack(folder: Path, index: PackIndex, write: Callable[[bytes], object]) -> str:
    """Hand a pack to `write` in pieces; returns its digest.

    Raises Unavailable if a file has changed since it was listed.
    """
    digest = hashlib.sha256()

    def write_and_hash(data: bytes) -> None:
        digest.update(data)
        write(data)

    encoded = msgspec.json.encode(index)
    write_and_hash(_MAGIC + len(encoded).to_bytes(_LENGTH_BYTES, "big"))
    write_and_hash(encoded)
    for file in index.files:
        if not file.is_folder and not file.link:
            for data in _read_content(folder, file):
                write_and_hash(data)
    return digest.hexdigest()


def unpack(
    stream: BinaryIO, digest: str, target: Path, is_wanted: Callable[[PackIndex, str], bool]
) -> PackIndex:
    """Read a pack to its end, and write its files into the new folder `target`.

    `is_wanted` is asked with the name of each folder at the top. Raises DamagedPackError, also after files
    were written: the caller removes them.
    """
    source = _HashingReader(stream)
    index = _read_index(source)
    wanted = {top for top in _FOLDERS if is_wanted(index, top)}
    links = []
    for file in index.files:
        is_here = file.name.split("/")[0] in wanted
        if file.link:
            links += [file] if is_here else []
        elif file.is_folder:
            if is_here:
                (target / file.name).mkdir(parents=True, exist_ok=True)
        else:
            _copy_content(source, file, target / file.name if is_here else None)
    if source.read(1):
        raise DamagedPackError("there is more in it than its index says")
    if source.hexdigest() != digest:
        raise DamagedPackError(f"its SHA-256 is {source.hexdigest()}")
    # At last: no file is written through a link.
    for link in links:
        path = target / link.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(link.link)
    return index


def _walk_folder(top: Path, folder: Path) -> Iterator[PackedFile]:
    yield PackedFile(_name_in(top, folder), is_folder=True)
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        path = Path(entry.path)
        name = _name_in(top, path)
        if entry.is_symlink():
            if not name.startswith(f"{CODE}/"):
                raise InvalidArgument(
                    f"{path} is a symbolic link, which cannot be shared with other servers."
                )
            yield PackedFile(name, link=str(path.readlink()))
        elif entry.is_dir():
            yield from _walk_folder(top, path)
        elif entry.is_file():
            status = entry.stat()
            is_program = bool(status.st_mode & _ANY_EXECUTE)
            yield PackedFile(name, status.st_size, int(status.st_mtime), is_program)
        else:
            raise InvalidArgument(f"{path} is neither a file nor a folder: it cannot be shared.")


def _name_in(top: Path, path: Path) -> str:
    name = path.relative_to(top).as_posix()
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(
            f"The name of {str(path)!a} is not UTF-8: the file cannot be shared. Rename it."
        ) from None
    return name


def _read_content(folder: Path, file: PackedFile) -> Iterator[bytes]:
    """As many bytes as the file had when it was listed, whatever has taken its place since.

    A pipe is not waited for, and a device that has no end not read to it.
    """
    path, left = folder / file.name, file.size
    with _open_content(path) as stream:
        while left and (data := stream.read(min(left, _CHUNK_BYTES))):
            left -= len(data)
            yield data
        if left or stream.read(1):
            raise _changed_error(path)


def _open_content(path: Path) -> BinaryIO:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _NO_FILE_ERRNOS:
            raise _changed_error(path) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _changed_error(path)
    return os.fdopen(descriptor, "rb")


def _changed_error(path: Path) -> Unavailable:
    return Unavailable(f"{path} was changed while it was packed; try again.")


class _HashingReader:
    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._digest = hashlib.sha256()

    def read(self, size: int) -> bytes:
        """At most so many bytes; b"" at the end."""
        data = self._stream.read(size)
        self._digest.update(data)
        return data

    def read_exactly(self, size: int) -> bytes:
        """Raises DamagedPackError if there are fewer."""
        parts = []
        while size and (data := self.read(size)):
            parts.append(data)
            size -= len(data)
        if size:
            raise DamagedPackError("it ends too early")
        return b"".join(parts)

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


def _read_index(source: _HashingReader) -> PackIndex:
    if source.read_exactly(len(_MAGIC)) != _MAGIC:
        raise DamagedPackError("it is no pack of this format")
    length = int.from_bytes(source.read_exactly(_LENGTH_BYTES), "big")
    if length > _MAX_INDEX_BYTES:
        raise DamagedPackError(f"its index would take {length} bytes")
    try:
        index = msgspec.json.decode(source.read_exactly(length), type=PackIndex)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedPackError(f"its index cannot be read: {error}") from error
    names = {file.name for file in index.files}
    if len(names) != len(index.files):
        raise DamagedPackError("a file is in it twice")
    links = {file.name for file in index.files if file.link}
    for file in index.files:
        _check_file(file)
        _check_parents(file, links)
    return index


def _check_file(file: PackedFile) -> None:
    """Raises DamagedPackError for a name outside of the folders that a pack may have."""
    parts = file.name.split("/")
    if parts[0] not in _FOLDERS or {"", ".", ".."} & set(parts) or "\0" in file.name + file.link:
        raise DamagedPackError(f"it names a file {file.name[:100]!a}")
    if file.size < 0 or (file.link and parts[0] != CODE):
        raise DamagedPackError(f"its index cannot be right for {file.name[:100]!a}")


def _check_parents(file: PackedFile, links: Collection[str]) -> None:
    """Raises DamagedPackError for a name below one of the `links`: it would be where the link leads."""
    parts = file.name.split("/")
    if links and any("/".join(parts[:count]) in links for count in range(1, len(parts))):
        raise DamagedPackError(f"{file.name[:100]!a} is below a link")


def _copy_content(source: _HashingReader, file: PackedFile, target: Path | None) -> None:
    """Write the next content to a new file, or skip it if there is no target."""
    if target is None:
        for size in _split_size(file.size):
            source.read_exactly(size)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    mode = _PROGRAM_MODE if file.is_program else _FILE_MODE
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as stream:
        for size in _split_size(file.size):
            stream.write(source.read_exactly(size))
    os.utime(target, (file.mtime, file.mtime))


def _split_size(size: int) -> Iterator[int]:
    while size > 0:
        yield min(size, _CHUNK_BYTES)
        size -= _CHUNK_BYTES
