"""Local folders to fetch from."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

from serving.artifacts.local_folder_policy import LocalFolderPolicy
from serving.artifacts.storage.source_folder import MAX_LISTED, SourceFile, SourceFolder
from serving.errors import InvalidArgument, NotFound, PermissionDenied, Unavailable

# File systems and users for which a hard link is refused while a copy works.
NO_HARD_LINK_ERRNOS = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP}
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


class LocalSourceFolder:
    """A local folder. It, and the targets of links in it, must be in `folders`."""

    def __init__(self, path: Path, folders: LocalFolderPolicy) -> None:
        self._path = path
        self._folders = folders
        self.uri = str(path)

    def list_files(self) -> list[SourceFile]:
        """Every file below it, at most MAX_LISTED; links are followed. Raises if there are none."""
        self._folders.check_path(self.uri, whole_tree=True)
        with translate_read_errors(self.uri):
            if not self._path.exists():
                raise NotFound(
                    f"There is no folder {self.uri} on the server's machine. Check the path; the server "
                    "does not see folders of its client's machine."
                )
            if not self._path.is_dir():
                raise InvalidArgument(
                    f"{self.uri} is a single file, not a folder. Give its folder: {self._path.parent}"
                )
            files = list(islice(self._walk_files(), MAX_LISTED))
        if not files:
            raise NotFound(f"The folder {self.uri} is empty. Put the model's files there first.")
        return files

    def _walk_files(self) -> Iterator[SourceFile]:
        def raise_error(error: OSError) -> None:
            raise error

        for parent, folders, names in os.walk(self._path, onerror=raise_error, followlinks=True):
            links = [path for path in map(Path(parent).joinpath, folders) if path.is_symlink()]
            for link in links:
                if link.resolve() in {above.resolve() for above in link.parents}:
                    raise InvalidArgument(f"{link} is a symbolic link to a folder it lies in; remove it.")
                self._folders.check_path(str(link), whole_tree=True)
            for path in map(Path(parent).joinpath, names):
                if path.is_symlink():
                    self._folders.check_path(str(path))
                yield _to_source_file(path, self._path)

    def copy_file(self, file: SourceFile, target: Path) -> None:
        """Copy a listed file; raises Unavailable if it has changed."""
        self._folders.check_path(str(file.origin))
        with translate_read_errors(self.uri):
            copy_content(file.origin, target)
            if _to_source_file(file.origin, self._path) != file:
                raise Unavailable(f"{file.origin} changed while it was being copied; try again.")


def _to_source_file(path: Path, root: Path) -> SourceFile:
    if path.is_symlink() and not path.exists():
        raise InvalidArgument(f"{path} is a symbolic link to {path.readlink()}, which does not exist.")
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise InvalidArgument(f"{path} is not a regular file.")
    return SourceFile(path.relative_to(root).as_posix(), status.st_size, str(status.st_mtime_ns), path)


def find_local_file(path: Path, folders: LocalFolderPolicy) -> tuple[SourceFolder, SourceFile]:
    """One file, with the folder that holds it."""
    folders.check_path(str(path))
    with translate_read_errors(str(path)):
        if path.is_dir():
            raise InvalidArgument(f"{path} is a folder; expected a single file.")
        return LocalSourceFolder(path.parent, folders), _to_source_file(path, path.parent)


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
