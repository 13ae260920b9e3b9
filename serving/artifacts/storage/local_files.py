"""Single files of this machine: found, opened, copied and written, with errors of ours."""

from __future__ import annotations

import errno
import io
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from serving.artifacts.local_folder_policy import LocalFolderPolicy
from serving.artifacts.storage.file_system import FileInfo, file_changed_error
from serving.errors import Internal, InvalidArgument, NotFound, PermissionDenied, ResourceExhausted

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

# File systems and users for which a hard link is refused while a copy works.
_NO_HARD_LINK_ERRNOS = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP}
_COPY_BYTES = 1 << 30


@contextmanager
def translate_read_errors(uri: str) -> Iterator[None]:
    """Raise OSErrors of reading as ServingErrors."""
    try:
        yield
    except PermissionError as error:
        raise PermissionDenied(f"The server may not open {error.filename or uri}.") from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound(f"{error.filename or uri} does not exist on the server's machine.") from error


@contextmanager
def translate_write_errors(name: str) -> Iterator[None]:
    """Turn the errors of changing `name` into ours."""
    try:
        yield
    except OSError as error:
        match error.errno:
            case errno.EACCES | errno.EPERM | errno.EROFS:
                raise PermissionDenied(f"The server may not write {name}: {error.strerror}.") from error
            case errno.ENOSPC | errno.EDQUOT:
                raise ResourceExhausted(f"There is no room for {name}: {error.strerror}.") from error
            case errno.EISDIR:
                raise InvalidArgument(f"{name} is a folder; expected a file.") from error
            case errno.ENOTDIR:
                raise InvalidArgument(f"{name} is not in or no folder: {error.strerror}.") from error
            case errno.ENAMETOOLONG:
                raise InvalidArgument(f"{name} cannot be written: {error.strerror}.") from error
            case _:
                raise Internal(f"Writing {name} failed: {error}.") from error


def stat_file(name: str) -> FileInfo | None:
    """The file `name`, None when there is none."""
    path = Path(name)
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        if path.is_symlink():
            raise InvalidArgument(
                f"{name} is a symbolic link to {path.readlink()}, which does not exist."
            ) from error
        return None
    if not stat.S_ISREG(status.st_mode):
        raise InvalidArgument(f"{name} is not a regular file.")
    return FileInfo(name, status.st_size, _file_version(status), gzip=False)


def _file_version(status: os.stat_result) -> str:
    return f"{status.st_mtime_ns} {status.st_size} {status.st_ino}"


def require_readable(item: FileInfo) -> FileInfo:
    if not os.access(item.uri, os.R_OK, effective_ids=True):
        raise PermissionDenied(f"The server may not open {item.uri}.")
    return item


class UnchangedFile(io.FileIO):
    """A file that must stay what was found, as far as it is read: looked at when opened and when over.

    A file that is replaced meanwhile is no matter: what was opened is still there to be read.
    """

    def __init__(self, item: FileInfo, folders: LocalFolderPolicy) -> None:
        super().__init__(item.uri, opener=open_nonblocking)
        self._item = item
        self._change_reported = False
        try:
            folders.check_open_file(self.fileno(), item.uri)
            self._check_unchanged()
        except BaseException:
            self.close()
            raise

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill the buffer; at the end of the file, check."""
        count = super().readinto(buffer)
        if not count:
            self._check_unchanged()
        return count

    def readall(self) -> bytes:
        """Read the rest, and check."""
        data = super().readall()
        self._check_unchanged()
        return data or b""

    def close(self) -> None:
        """Check, unless it has been told already."""
        try:
            if not self.closed and not self._change_reported:
                self._check_unchanged()
        finally:
            super().close()

    def _check_unchanged(self) -> None:
        if _file_version(os.fstat(self.fileno())) != self._item.version:
            self._change_reported = True
            raise file_changed_error(self._item.uri)


class PartialFile(io.FileIO):
    """A file being written that will be called `name`, which is what its errors say."""

    def __init__(self, path: Path, name: str, folders: LocalFolderPolicy) -> None:
        self._name = name
        super().__init__(path, "w", opener=_open_without_truncating)
        try:
            folders.check_open_file(self.fileno(), name)
            if os.fstat(self.fileno()).st_size:
                self.truncate(0)
        except BaseException:
            self.close()
            raise

    def write(self, data: ReadableBuffer) -> int:
        """Write, with errors of ours."""
        with translate_write_errors(self._name):
            return super().write(data)


def open_nonblocking(path: str, flags: int) -> int:
    """As `open` does, but without waiting for the other end of a pipe that has taken a file's place."""
    return os.open(path, flags | os.O_NONBLOCK)


def _open_without_truncating(path: str, flags: int) -> int:
    """For writing, before it is known what the path leads to."""
    return os.open(path, flags & ~os.O_TRUNC, 0o666)


def make_parent(path: Path) -> None:
    with translate_write_errors(str(path)):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise InvalidArgument(f"{error.filename} is a file; {path} needs a folder there.") from error


def link_if_absent(partial: Path, path: Path) -> bool:
    """Give `partial` the name `path` too, unless that is taken."""
    try:
        path.hardlink_to(partial)
    except FileExistsError:
        # A network file system may repeat a request that had been carried out.
        return partial.stat().st_nlink == 2
    except OSError as error:
        if error.errno not in _NO_HARD_LINK_ERRNOS:
            raise
        return _create_if_absent(path, partial.read_bytes())
    return True


def _create_if_absent(path: Path, data: bytes) -> bool:
    try:
        with path.open("xb") as file:
            file.write(data)
    except FileExistsError:
        return False
    return True


def copy_content(source: Path, target: Path) -> None:
    """Copy the content of a file, by copy on write where the file system can."""
    with source.open("rb") as reading, target.open("wb") as writing, suppress(OSError):
        while os.copy_file_range(reading.fileno(), writing.fileno(), _COPY_BYTES):
            pass
    # Not every kernel and file system can, and some say that they have come to the end.
    if target.stat().st_size != source.stat().st_size:
        shutil.copyfile(source, target)


def sync_to_disk(path: Path) -> None:
    """Flush a file or a folder, so that it survives a power cut as the catalog entry that names it does."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
