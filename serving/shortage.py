"""What a machine can be short of for a moment, as clients are told of it."""

from __future__ import annotations

import errno
from collections.abc import Mapping

from serving.errors import Unavailable

_SHORTAGE_TEXTS: Mapping[int, str] = {
    errno.EMFILE: "file descriptors (limit nofile of its process)",
    errno.ENFILE: "file descriptors (of the whole machine)",
    errno.EAGAIN: "processes or threads (limit nproc, or pids of its container)",
    errno.ENOMEM: "memory",
    errno.ENOBUFS: "memory for sockets",
}
_RETRY_AFTER = 5.0


class ResourceShortage(Unavailable):
    """The server has too little of something for a moment."""


def find_shortage(error: BaseException) -> ResourceShortage | None:
    """What a client is told if the server has too little of something for a moment; None for other errors."""
    if isinstance(error, MemoryError):
        missing = _SHORTAGE_TEXTS[errno.ENOMEM]
    elif isinstance(error, RuntimeError) and str(error) == "can't start new thread":
        missing = _SHORTAGE_TEXTS[errno.EAGAIN]
    elif isinstance(error, OSError) and error.errno in _SHORTAGE_TEXTS:
        missing = _SHORTAGE_TEXTS[error.errno or 0]
    else:
        return None
    return ResourceShortage(
        f"The server is short of {missing}: {str(error) or type(error).__name__}. Try again.",
        retry_after=_RETRY_AFTER,
    )
