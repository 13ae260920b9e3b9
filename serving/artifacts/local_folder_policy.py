"""Which folders of this machine callers of the API may use (setting `local_folders`)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from serving.errors import FailedPrecondition, InvalidArgument

# What is there is no file: to read or write it is to ask or tell the kernel something.
_KERNEL_FOLDERS = ("/proc", "/sys", "/dev")


class LocalFolderPolicy(msgspec.Struct, frozen=True):
    """Real paths: if there are `allowed` ones, everything else is refused; `refused` always is.

    Without either everything is allowed: for programs run by hand.
    """

    allowed: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

    @classmethod
    def from_setting(cls, setting: str, state_dir: Path, shared_versions_uri: str = "") -> LocalFolderPolicy:
        """The policy of the setting, folders separated by commas. Raises InvalidArgument.

        Refused is what the server keeps itself: the state folder, and packs of versions in a shared folder.
        """
        folders = [part for part in map(str.strip, setting.split(",")) if part]
        for folder in folders:
            if not folder.startswith("/"):
                raise InvalidArgument(f"local_folders: {folder} is not absolute; give /FOLDER.")
        own = [resolve_path(str(state_dir))]
        if shared_versions_uri and not shared_versions_uri.startswith("gs://"):
            own.append(resolve_path(shared_versions_uri.removeprefix("file://")))
        return cls(tuple(map(resolve_path, folders)), (*own, *_KERNEL_FOLDERS))

    def check_path(self, path: str, *, whole_tree: bool = False) -> None:
        """Refuse a path that leads elsewhere once links are followed; `whole_tree`: with everything below it.

        Raises FailedPrecondition, whether or not the path exists.
        """
        if self.allowed or self.refused:
            self._check_real_path(resolve_path(path), path, whole_tree=whole_tree)

    def check_open_file(self, file: int, path: str) -> None:
        """Refuse a file opened as `path`: unlike a path, an open file cannot be replaced."""
        if self.allowed or self.refused:
            self._check_real_path(str(Path(f"/proc/self/fd/{file}").readlink()), path)

    def _check_real_path(self, real: str, path: str, *, whole_tree: bool = False) -> None:
        if _is_in_one(real, self.refused):
            raise FailedPrecondition(
                f"{path} leads into the server's state folder or into /proc, /sys or /dev, which no caller "
                "may use. Name another folder; the setting local_folders says which ones are open."
            )
        if whole_tree and any(_is_in_one(folder, (real,)) for folder in self.refused):
            raise FailedPrecondition(
                f"{path} contains the server's state folder or /proc, /sys or /dev, which no caller may use. "
                "Name a folder without them; the setting local_folders says which ones are open."
            )
        if self.allowed and not _is_in_one(real, self.allowed):
            raise FailedPrecondition(
                f"{path} is in no folder of this machine that callers may use (setting local_folders: "
                f"{', '.join(self.allowed)}). Put it there, or have the setting changed."
            )


def resolve_path(path: str) -> str:
    """The path with links followed and one leading slash: POSIX gives two another meaning.

    Raises FailedPrecondition if they cannot be followed.
    """
    try:
        real = os.path.realpath(path)
    except OSError as error:  # a link that may not be read, as in /proc
        raise FailedPrecondition(
            f"{path} cannot be followed: {error.strerror}. Name a folder that the server may read."
        ) from error
    return "/" + real.lstrip("/")


def _is_in_one(path: str, folders: Iterable[str]) -> bool:
    return any(Path(path).is_relative_to(folder) for folder in folders)
