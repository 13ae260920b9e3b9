"""What can go wrong between a request and a node."""

from __future__ import annotations

import errno

# What a machine can be short of for a moment: processes, threads, memory, descriptors, room on a disk.
_SHORTAGES = frozenset(
    {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOSPC, errno.EDQUOT}
)


def is_shortage(error: BaseException) -> bool:
    """Whether the machine was short of a resource: not a fault of a version, and soon worth another try."""
    return (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno in _SHORTAGES)
        or (isinstance(error, RuntimeError) and str(error) == "can't start new thread")
    )


class NodeError(Exception):
    """Base class of the errors of this package."""


class StartFailedError(NodeError):
    """No node became ready; `reason` says why, for the owner of the version.

    `retry_after` is after how many seconds another try may succeed.
    """

    def __init__(self, reason: str, retry_after: float = 5.0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = retry_after


class TooLateError(NodeError):
    """A node will be ready, but later than the request can wait; `retry_after` is in how many seconds."""

    def __init__(self, reason: str, retry_after: float) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = retry_after


class QueueFullError(NodeError):
    """No more requests may wait; `setting` names the limit."""

    def __init__(self, setting: str, limit: int) -> None:
        super().__init__(f"{setting} = {limit}")
        self.setting = setting
        self.limit = limit


class RetiredError(NodeError):
    """The version was deleted while the request waited."""
