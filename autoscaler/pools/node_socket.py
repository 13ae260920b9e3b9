"""The listening socket of a node, out of reach of whatever cleans up temporary files.

A unix socket needs a path to be bound to, but not to be reached: on Linux the path is removed as soon as the
socket is bound, and connections go through a descriptor of its inode. So there is nothing to clean up when a
server is killed, nothing that servers could share by mistake, and no limit on the length of paths.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from autoscaler import linux

_BACKLOG = 2048
_PREFIX = "pilotlight-socket-"
_NAME = "s"
# Where to bind if the folder for temporary files is gone, full or read-only.
_FALLBACK_FOLDERS = ("/tmp", "/dev/shm")  # noqa: S108  mkdtemp makes a folder that is ours alone
# A folder is there while a socket is being bound, far shorter than this.
_STALE_SECONDS = 60


class NodeSocket:
    """A listening socket; raises OSError.

    `address` is a path by which this process, and no other, connects to it until `close`. Elsewhere than on
    Linux it is a file, and any process of the same user can connect.
    """

    def __init__(self) -> None:
        self._listener: socket.socket | None = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._folder: Path | None = None
        self._inode: int | None = None
        try:
            self.address = self._bind_listener(self._listener)
            self._listener.listen(_BACKLOG)
        except BaseException:
            self.close()
            raise

    @property
    def shared_address(self) -> str:
        """A path by which any process of the same user connects to it, for as long as this one lives."""
        return self.address.replace("/proc/self/", f"/proc/{os.getpid()}/")

    def fileno(self) -> int:
        """The descriptor for the node; raises ValueError after `close_listener`."""
        if self._listener is None:
            raise ValueError("the listener is closed")
        return self._listener.fileno()

    def close_listener(self) -> None:
        """Close the server's descriptor of the listening end, once the node has its own."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def close(self) -> None:
        """Release the address, which may be another socket's from now on."""
        self.close_listener()
        if self._inode is not None:
            os.close(self._inode)
            self._inode = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _bind_listener(self, listener: socket.socket) -> str:
        folder = self._folder = _make_folder()
        if not linux.AVAILABLE:
            listener.bind(str(folder / _NAME))
            return str(folder / _NAME)
        with _open_folder(folder) as descriptor:
            # By the descriptor of its folder, for a socket's path must be short.
            listener.bind(f"/proc/self/fd/{descriptor}/{_NAME}")
            self._inode = os.open(_NAME, os.O_PATH | os.O_CLOEXEC, dir_fd=descriptor)
        shutil.rmtree(folder)
        self._folder = None
        return f"/proc/self/fd/{self._inode}"


def remove_stale_folders() -> None:
    """Remove the folders of processes that were killed while they bound a socket: this user's only."""
    if not linux.AVAILABLE:  # where folders live as long as their sockets
        return
    for place in {tempfile.gettempdir(), *_FALLBACK_FOLDERS}:
        for folder in Path(place).glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError):  # gone meanwhile
                found = folder.lstat()
                if found.st_uid == os.geteuid() and found.st_mtime < time.time() - _STALE_SECONDS:
                    shutil.rmtree(folder, ignore_errors=True)


def _make_folder() -> Path:
    """A new folder where temporary files go, or else in a fallback. Raises OSError."""
    try:
        return Path(tempfile.mkdtemp(prefix=_PREFIX))
    except OSError:
        for place in _FALLBACK_FOLDERS:
            with contextlib.suppress(OSError):
                return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
        raise


@contextlib.contextmanager
def _open_folder(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
