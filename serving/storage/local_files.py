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

from serving.errors import (
    Internal,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    ServingError,
)
from serving.local_folders import LocalFolders
from serving.storage.items import Item, changed
from serving.storage.local import UNLINKABLE, flush, local_errors

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

_BUFFER = 1 << 20
# What we have not finished writing. Nothing else hides it from `list`.
_PARTIAL = re.compile(r"\..+\.[0-9a-f]+\.part", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Disk:
    """The file systems of this machine, as far as `folders` lets them be used; names are absolute paths."""

    folders: LocalFolders = LocalFolders()

    def uri(self, name: str) -> str:
        """The path itself."""
        return name

    def find(self, name: str) -> Item:
        """One file, which the server must be allowed to read."""
        self.folders.check(name)
        with local_errors(name):
            if Path(name).is_dir():
                raise InvalidArgument(f"{name} is a folder; write {name.rstrip('/')}/* for the files in it.")
            item = _item(name)
        if item is None:
            raise NotFound(
                f"There is no file {name} on the server's machine. Check the path; the server does not "
                "see files of its client's machine."
            )
        return _readable(item)

    def match(self, stem: str) -> list[Item]:
        """Files beside each other whose paths start with `stem`; the server must be allowed to read them."""
        folder, _, start = stem.rpartition("/")
        self.folders.check(folder or "/")
        try:
            with local_errors(folder), os.scandir(folder or "/") as entries:
                names = [one.path for one in entries if one.name.startswith(start) and not one.is_dir()]
                for name in names:
                    self.folders.check(name)
                items = [item for name in names if (item := _item(name))]
        except (NotFound, NotADirectoryError):
            return []
        return [_readable(item) for item in items]

    def list(self, folder: str) -> list[Item]:
        """Every file below a folder; links to folders are not followed."""

        def check(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError | NotADirectoryError):
                raise error

        self.folders.check(folder)
        with local_errors(folder):
            return [
                item
                for parent, _, names in os.walk(folder, onerror=check)
                for name in names
                if not _PARTIAL.fullmatch(name) and (item := _item(f"{parent}/{name}"))
            ]

    def open(self, name: str, item: Item, start: int) -> BinaryIO:
        """The file, watched for changes."""
        with local_errors(name):
            try:
                file = _Watched(item, self.folders)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
                raise changed(name) from error
        file.seek(start)
        return io.BufferedReader(file, _BUFFER)

    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        """Written beside itself, then renamed. A process that dies leaves `.NAME.PID.part` behind."""
        self.folders.check(name)
        path = Path(name)
        _make_parent(path)
        partial = path.with_name(f".{path.name}.{os.getpid()}.part")
        with _writing(name):
            file = io.BufferedWriter(_Partial(partial, name, self.folders), _BUFFER)
        try:
            yield file
            file.close()
            with _writing(name):
                flush(partial)
                partial.replace(path)
        except BaseException:
            # What is still in its buffer may have no room on the disk.
            with suppress(OSError, ServingError):
                file.close()
            partial.unlink(missing_ok=True)
            raise

    def read(self, name: str) -> bytes:
        """The whole file."""
        self.folders.check(name)
        with local_errors(name), open(name, "rb", opener=_open_at_once) as file:
            self.folders.check_open(file.fileno(), name)
            return file.read()

    def write(self, name: str, data: bytes) -> None:
        """As `create` does."""
        with self.create(name) as file:
            file.write(data)

    def claim(self, name: str, data: bytes) -> bool:
        """Written beside itself, then linked: a link is made by one only, on network file systems too."""
        self.folders.check(name)
        path = Path(name)
        _make_parent(path)
        partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
        try:
            with _writing(name), suppress(FileNotFoundError):
                partial.write_bytes(data)
                flush(partial)
                return _link(partial, path)
            # Whoever has the file has removed what seemed to be left over, or the folder.
            return self.claim(name, data)
        finally:
            with suppress(OSError):
                partial.unlink()

    def move(self, name: str, target: str) -> None:
        """A rename."""
        self.folders.check(name)
        self.folders.check(target)
        with local_errors(name):
            os.stat(name)  # noqa: PTH116 - raises NotFound before a folder is made for nothing
        _make_parent(Path(target))
        with _writing(target):
            Path(name).replace(target)

    def delete(self, name: str) -> None:
        """Unlink."""
        self.folders.check(name)
        with _writing(name), suppress(NotADirectoryError):
            Path(name).unlink(missing_ok=True)

    def delete_partials(self, name: str) -> None:
        """Unlink what `create` and `claim` write beside the file."""
        path = Path(name)
        with _writing(name), suppress(FileNotFoundError, NotADirectoryError):
            for entry in path.parent.iterdir():
                if _PARTIAL.fullmatch(entry.name) and entry.name.startswith(f".{path.name}."):
                    self.delete(str(entry))

    def delete_folder(self, name: str) -> None:
        """The folder with all that is in it, whoever else is removing it too."""
        self.folders.check(name, whole=True)
        with _writing(name):
            while os.path.lexists(name):
                with suppress(FileNotFoundError):
                    shutil.rmtree(name)


def _item(name: str) -> Item | None:
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
    return Item(name, status.st_size, _version(status), gzip=False)


def _version(status: os.stat_result) -> str:
    return f"{status.st_mtime_ns} {status.st_size} {status.st_ino}"


def _readable(item: Item) -> Item:
    if not os.access(item.uri, os.R_OK, effective_ids=True):
        raise PermissionDenied(f"The server may not open {item.uri}.")
    return item


class _Watched(io.FileIO):
    """A file that must stay what was found, as far as it is read: looked at when opened and when over.

    A file that is replaced meanwhile is no matter: what was opened is still there to be read.
    """

    def __init__(self, item: Item, folders: LocalFolders) -> None:
        super().__init__(item.uri, opener=_open_at_once)
        self._item = item
        self._told = False
        try:
            folders.check_open(self.fileno(), item.uri)
            self._check()
        except BaseException:
            self.close()
            raise

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill the buffer; at the end of the file, check."""
        count = super().readinto(buffer)
        if not count:
            self._check()
        return count

    def readall(self) -> bytes:
        """Read the rest, and check."""
        data = super().readall()
        self._check()
        return data or b""

    def close(self) -> None:
        """Check, unless it has been told already."""
        try:
            if not self.closed and not self._told:
                self._check()
        finally:
            super().close()

    def _check(self) -> None:
        if _version(os.fstat(self.fileno())) != self._item.version:
            self._told = True
            raise changed(self._item.uri)


class _Partial(io.FileIO):
    """A file being written that will be called `name`, which is what its errors say."""

    def __init__(self, path: Path, name: str, folders: LocalFolders) -> None:
        self._name = name
        super().__init__(path, "w", opener=_open_as_it_is)
        try:
            folders.check_open(self.fileno(), name)
            if os.fstat(self.fileno()).st_size:
                self.truncate(0)
        except BaseException:
            self.close()
            raise

    def write(self, data: ReadableBuffer) -> int:
        """Write, with errors of ours."""
        with _writing(self._name):
            return super().write(data)


def _open_at_once(path: str, flags: int) -> int:
    """As `open` does, but without waiting for the other end of a pipe that has taken a file's place."""
    return os.open(path, flags | os.O_NONBLOCK)


def _open_as_it_is(path: str, flags: int) -> int:
    """For writing, before it is known what the path leads to."""
    return os.open(path, flags & ~os.O_TRUNC, 0o666)


def _make_parent(path: Path) -> None:
    with _writing(str(path)):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise InvalidArgument(f"{error.filename} is a file; {path} needs a folder there.") from error


def _link(partial: Path, path: Path) -> bool:
    """Give `partial` the name `path` too, unless that is taken."""
    try:
        path.hardlink_to(partial)
    except FileExistsError:
        # A network file system may repeat a request that had been carried out.
        return partial.stat().st_nlink == 2
    except OSError as error:
        if error.errno not in UNLINKABLE:
            raise
        return _create_only(path, partial.read_bytes())
    return True


def _create_only(path: Path, data: bytes) -> bool:
    try:
        with path.open("xb") as file:
            file.write(data)
    except FileExistsError:
        return False
    return True


@contextmanager
def _writing(name: str) -> Iterator[None]:
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
