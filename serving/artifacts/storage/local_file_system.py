"""Single files of this machine."""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from serving.artifacts.local_folder_policy import LocalFolderPolicy
from serving.artifacts.storage.file_system import FileInfo, file_changed_error
from serving.artifacts.storage.local_files import NO_HARD_LINK_ERRNOS, sync_to_disk, translate_read_errors
from serving.errors import (
    Internal,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    ServingError,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

_BUFFER = 1 << 20
# Files being written, which `list` leaves out.
_PARTIAL = re.compile(r"\..+\.[0-9a-f]+\.part", re.DOTALL)


@dataclass(frozen=True, slots=True)
class LocalFileSystem:
    """The file systems of this machine, as far as `folders` lets them be used; names are absolute paths."""

    folders: LocalFolderPolicy = LocalFolderPolicy()

    def uri(self, name: str) -> str:
        """The path itself."""
        return name

    def stat(self, name: str) -> FileInfo:
        """One file, which the server must be allowed to read."""
        self.folders.check_path(name)
        with translate_read_errors(name):
            if Path(name).is_dir():
                raise InvalidArgument(f"{name} is a folder; write {name.rstrip('/')}/* for the files in it.")
            item = _stat_file(name)
        if item is None:
            raise NotFound(
                f"There is no file {name} on the server's machine. Check the path; the server does not "
                "see files of its client's machine."
            )
        return _require_readable(item)

    def list_prefix(self, stem: str) -> list[FileInfo]:
        """Files beside each other whose paths start with `stem`; the server must be allowed to read them."""
        folder, _, start = stem.rpartition("/")
        self.folders.check_path(folder or "/")
        try:
            with translate_read_errors(folder), os.scandir(folder or "/") as entries:
                names = [one.path for one in entries if one.name.startswith(start) and not one.is_dir()]
                for name in names:
                    self.folders.check_path(name)
                items = [item for name in names if (item := _stat_file(name))]
        except (NotFound, NotADirectoryError):
            return []
        return [_require_readable(item) for item in items]

    def list(self, folder: str) -> list[FileInfo]:
        """Every file below a folder; links to folders are not followed."""

        def raise_unless_missing(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError | NotADirectoryError):
                raise error

        self.folders.check_path(folder)
        with translate_read_errors(folder):
            return [
                item
                for parent, _, names in os.walk(folder, onerror=raise_unless_missing)
                for name in names
                if not _PARTIAL.fullmatch(name) and (item := _stat_file(f"{parent}/{name}"))
            ]

    def open(self, name: str, item: FileInfo, start: int) -> BinaryIO:
        """The file, watched for changes."""
        with translate_read_errors(name):
            try:
                file = _UnchangedFile(item, self.folders)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
                raise file_changed_error(name) from error
        file.seek(start)
        return io.BufferedReader(file, _BUFFER)

    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        """Written beside itself, then renamed. A process that dies leaves `.NAME.PID.part` behind."""
        self.folders.check_path(name)
        path = Path(name)
        _make_parent(path)
        partial = path.with_name(f".{path.name}.{os.getpid()}.part")
        with _translate_write_errors(name):
            file = io.BufferedWriter(_PartialFile(partial, name, self.folders), _BUFFER)
        try:
            yield file
            file.close()
            with _translate_write_errors(name):
                sync_to_disk(partial)
                partial.replace(path)
        except BaseException:
            # What is still in its buffer may have no room on the disk.
            with suppress(OSError, ServingError):
                file.close()
            partial.unlink(missing_ok=True)
            raise

    def read(self, name: str) -> bytes:
        """The whole file."""
        self.folders.check_path(name)
        with translate_read_errors(name), open(name, "rb", opener=_open_nonblocking) as file:
            self.folders.check_open_file(file.fileno(), name)
            return file.read()

    def write(self, name: str, data: bytes) -> None:
        """As `create` does."""
        with self.create(name) as file:
            file.write(data)

    def create_if_absent(self, name: str, data: bytes) -> bool:
        """Written beside itself, then linked: a link is made by one only, on network file systems too."""
        self.folders.check_path(name)
        path = Path(name)
        _make_parent(path)
        partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
        try:
            with _translate_write_errors(name), suppress(FileNotFoundError):
                partial.write_bytes(data)
                sync_to_disk(partial)
                return _link_if_absent(partial, path)
            # Another process has removed the partial file as a leftover, or the folder.
            return self.create_if_absent(name, data)
        finally:
            with suppress(OSError):
                partial.unlink()

    def move(self, name: str, target: str) -> None:
        """A rename."""
        self.folders.check_path(name)
        self.folders.check_path(target)
        with translate_read_errors(name):
            os.stat(name)  # noqa: PTH116 - raises NotFound before a folder is made for nothing
        _make_parent(Path(target))
        with _translate_write_errors(target):
            Path(name).replace(target)

    def delete(self, name: str) -> None:
        """Unlink."""
        self.folders.check_path(name)
        with _translate_write_errors(name), suppress(NotADirectoryError):
            Path(name).unlink(missing_ok=True)

    def delete_partials(self, name: str) -> None:
        """Unlink what `create` and `claim` write beside the file."""
        path = Path(name)
        with _translate_write_errors(name), suppress(FileNotFoundError, NotADirectoryError):
            for entry in path.parent.iterdir():
                if _PARTIAL.fullmatch(entry.name) and entry.name.startswith(f".{path.name}."):
                    self.delete(str(entry))

    def delete_folder(self, name: str) -> None:
        """The folder with all that is in it, whoever else is removing it too."""
        self.folders.check_path(name, whole_tree=True)
        with _translate_write_errors(name):
            while os.path.lexists(name):
                with suppress(FileNotFoundError):
                    shutil.rmtree(name)


def _stat_file(name: str) -> FileInfo | None:
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


def _require_readable(item: FileInfo) -> FileInfo:
    if not os.access(item.uri, os.R_OK, effective_ids=True):
        raise PermissionDenied(f"The server may not open {item.uri}.")
    return item


class _UnchangedFile(io.FileIO):
    """A file that must stay what was found, as far as it is read: looked at when opened and when over.

    A file that is replaced meanwhile is no matter: what was opened is still there to be read.
    """

    def __init__(self, item: FileInfo, folders: LocalFolderPolicy) -> None:
        super().__init__(item.uri, opener=_open_nonblocking)
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


class _PartialFile(io.FileIO):
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
        with _translate_write_errors(self._name):
            return super().write(data)


def _open_nonblocking(path: str, flags: int) -> int:
    """As `open` does, but without waiting for the other end of a pipe that has taken a file's place."""
    return os.open(path, flags | os.O_NONBLOCK)


def _open_without_truncating(path: str, flags: int) -> int:
    """For writing, before it is known what the path leads to."""
    return os.open(path, flags & ~os.O_TRUNC, 0o666)


def _make_parent(path: Path) -> None:
    with _translate_write_errors(str(path)):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise InvalidArgument(f"{error.filename} is a file; {path} needs a folder there.") from error


def _link_if_absent(partial: Path, path: Path) -> bool:
    """Give `partial` the name `path` too, unless that is taken."""
    try:
        path.hardlink_to(partial)
    except FileExistsError:
        # A network file system may repeat a request that had been carried out.
        return partial.stat().st_nlink == 2
    except OSError as error:
        if error.errno not in NO_HARD_LINK_ERRNOS:
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


@contextmanager
def _translate_write_errors(name: str) -> Iterator[None]:
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
