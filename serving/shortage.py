"""What a machine can be short of for a moment, as clients are told of it."""

from __future__ import annotations

import errno
from collections.abc import Mapping

from serving.errors import Unavailable

_MISSING: Mapping[int, str] = {
    errno.EMFILE: "file descriptors (limit nofile of its process)",
    errno.ENFILE: "file descriptors (of the whole machine)",
    errno.EAGAIN: "processes or threads (limit nproc, or pids of its container)",
    errno.ENOMEM: "memory",
    errno.ENOBUFS: "memory for sockets",
}
_RETRY_AFTER = 5.0


class Shortage(Unavailable):
    """The server has too little of something for a moment."""


def shortage_of(error: BaseException) -> Shortage | None:
    """What a client is told if the server has too little of something for a moment; None for other errors."""
    if isinstance(error, MemoryError):
        missing = _MISSING[errno.ENOMEM]
    elif isinstance(error, RuntimeError) and str(error) == "can't start new thread":
        missing = _MISSING[errno.EAGAIN]
    elif isinstance(error, OSError) and error.errno in _MISSING:
        missing = _MISSING[error.errno or 0]
    else:
        return None
    return Shortage(
        f"The server is short of {missing}: {str(error) or type(error).__name__}. Try again.",
        retry_after=_RETRY_AFTER,
    )
