"""What can go wrong between a request and a node."""

from __future__ import annotations


class NodeError(Exception):
    """Base of everything this package raises."""


class StartFailedError(NodeError):
    """No node became ready; `reason` says why, in words for the owner of the version.

    `retry_after` is after how many seconds asking again may help.
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
