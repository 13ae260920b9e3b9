"""What can go wrong between a request and a node."""

from __future__ import annotations


class NodeError(Exception):
    """Base of everything this package raises."""


class StartFailedError(NodeError):
    """A node did not become ready; `reason` says why, in words for the owner of the version."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class QueueFullError(NodeError):
    """No more requests may wait; `setting` names the limit."""

    def __init__(self, setting: str, limit: int) -> None:
        super().__init__(f"{setting} = {limit}")
        self.setting = setting
        self.limit = limit


class RetiredError(NodeError):
    """The version was deleted while the request waited."""
