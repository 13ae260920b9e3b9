"""The file systems of this machine."""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from serving.artifacts.local_folder_policy import LocalFolderPolicy
from serving.artifacts.storage.file_system import (
    MAX_LISTED,
    FileInfo,
    file_changed_error,
    unexpected_folder_error,
)
from serving.artifacts.storage.local_files import (
    PartialFile,
    UnchangedFile,
    copy_content,
    link_if_absent,
    make_parent,
    open_nonblocking,
    require_readable,
    stat_file,
    sync_to_disk,
    translate_read_errors,
    translate_write_errors,
)
from serving.errors import InvalidArgument, NotFound, ServingError

_BUFFER = 1 << 20
_NOTHING_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
# Files being written, which `list` leaves out.
_PARTIAL = re.compile(r"\..+\.[0-9a-f]+\.part", re.DOTALL)


def _walk_paths(folder: str) -> Iterator[str]:
    """The paths of all that is no folder. (`os.walk` meets the limit of recursion in deep folders.)"""
    waiting = [folder]
    while waiting:
        parent = waiting.pop()
        try:
            with os.scandir(parent) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif not _PARTIAL.fullmatch(entry.name):
                        yield entry.path
        except OSError as error:
            if error.errno not in _NOTHING_THERE:
                raise


def _stat_regular_file(path: str) -> FileInfo | None:
    try:
        return stat_file(path)
    except InvalidArgument:  # a pipe, or a link to what is not there
        return None
    except OSError as error:
        if error.errno not in _NOTHING_THERE:
            raise
        return None


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
                raise unexpected_folder_error(name)
            item = stat_file(name)
        if item is None:
            raise NotFound(
                f"There is no file {name}. Check the path; a server sees files of its own machine only, and "
                "not those of its client's."
            )
        return require_readable(item)

    def list_prefix(self, stem: str) -> Sequence[FileInfo]:
        """Files beside each other whose paths start with `stem`; the server must be allowed to read them."""
        folder, _, start = stem.rpartition("/")
        self.folders.check_path(folder or "/")
        try:
            with translate_read_errors(folder), os.scandir(folder or "/") as entries:
                names = [one.path for one in entries if one.name.startswith(start) and not one.is_dir()]
                for name in names:
                    self.folders.check_path(name)
                items = [item for name in names if (item := stat_file(name))]
        except (NotFound, NotADirectoryError):
            return []
        return [require_readable(item) for item in items]

    def list(self, folder: str) -> Sequence[FileInfo]:
        """Every file below a folder; links to folders are not followed.

        What no file can be opened by is left out: links that lead nowhere, pipes, paths that are too long.
        """
        self.folders.check_path(folder)
        with translate_read_errors(folder):
            return [item for path in _walk_paths(folder) if (item := _stat_regular_file(path))]

    def list_artifact(self, folder: str) -> Sequence[FileInfo]:
        """Every file below a folder; links are followed, if the policy allows what they lead to."""
        self.folders.check_path(folder, whole_tree=True)
        path = Path(folder)
        with translate_read_errors(folder):
            if not path.exists():
                raise NotFound(
                    f"There is no folder {folder}. Check the path; a server sees folders of its own machine "
                    "only, and not those of its client's."
                )
            if not path.is_dir():
                raise InvalidArgument(
                    f"{folder} is a single file, not a folder. Give its folder: {path.parent}"
                )
            files = list(islice(self._walk_files(folder), MAX_LISTED))
        if not files:
            raise NotFound(f"The folder {folder} is empty. Put the model's files there first.")
        return files

    def download(self, item: FileInfo, target: Path) -> None:
        """A copy."""
        self.folders.check_path(item.uri)
        with translate_read_errors(item.uri):
            copy_content(Path(item.uri), target)
            if stat_file(item.uri) != item:
                raise file_changed_error(item.uri, "copied")

    def open(self, item: FileInfo, start: int) -> BinaryIO:
        """The file, watched for changes."""
        name = item.uri
        with translate_read_errors(name):
            try:
                file = UnchangedFile(item, self.folders)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
                raise file_changed_error(name) from error
        file.seek(start)
        return io.BufferedReader(file, _BUFFER)

    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        """Written beside itself, then renamed. A process that dies leaves `.NAME.ID.part` behind.

        Several machines may write the same file of a network file system: the last one's stays, as a whole.
        """
        self.folders.check_path(name)
        path = Path(name)
        make_parent(path)
        partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
        with translate_write_errors(name):
            file = io.BufferedWriter(PartialFile(partial, name, self.folders), _BUFFER)
        try:
            yield file
            file.close()
            with translate_write_errors(name):
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
        with translate_read_errors(name), open(name, "rb", opener=open_nonblocking) as file:
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
        while True:
            make_parent(path)
            partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
            try:
                # Again where another process has removed the partial file as a leftover, or the folder.
                with translate_write_errors(name), suppress(FileNotFoundError):
                    partial.write_bytes(data)
                    sync_to_disk(partial)
                    return link_if_absent(partial, path)
            finally:
                with suppress(OSError):
                    partial.unlink()

    def move(self, name: str, target: str) -> None:
        """A rename."""
        self.folders.check_path(name)
        self.folders.check_path(target)
        with translate_read_errors(name):
            os.stat(name)  # noqa: PTH116 - raises NotFound before a folder is made for nothing
        make_parent(Path(target))
        with translate_write_errors(target):
            Path(name).replace(target)

    def delete(self, name: str) -> None:
        """Unlink."""
        self.folders.check_path(name)
        with translate_write_errors(name), suppress(NotADirectoryError):
            Path(name).unlink(missing_ok=True)

    def delete_partials(self, name: str) -> None:
        """Unlink what `create` and `create_if_absent` write beside the file."""
        path = Path(name)
        with translate_write_errors(name), suppress(FileNotFoundError, NotADirectoryError):
            for entry in path.parent.iterdir():
                if _PARTIAL.fullmatch(entry.name) and entry.name.startswith(f".{path.name}."):
                    self.delete(str(entry))

    def delete_folder(self, name: str) -> None:
        """The folder with all that is in it, whoever else is removing it too."""
        self.folders.check_path(name, whole_tree=True)
        with translate_write_errors(name):
            while os.path.lexists(name):
                with suppress(FileNotFoundError):
                    shutil.rmtree(name)

    def _walk_files(self, folder: str) -> Iterator[FileInfo]:
        def raise_error(error: OSError) -> None:
            raise error

        for parent, folders, names in os.walk(folder, onerror=raise_error, followlinks=True):
            links = [path for path in map(Path(parent).joinpath, folders) if path.is_symlink()]
            for link in links:
                if link.resolve() in {above.resolve() for above in link.parents}:
                    raise InvalidArgument(f"{link} is a symbolic link to a folder it lies in; remove it.")
                self.folders.check_path(str(link), whole_tree=True)
            for path in map(Path(parent).joinpath, names):
                if path.is_symlink():
                    self.folders.check_path(str(path))
                item = stat_file(str(path))
                if item is None:
                    raise file_changed_error(str(path), "listed")
                yield item
