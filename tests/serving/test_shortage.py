"""What the server is short of for a moment is told as such, and nothing else is."""

from __future__ import annotations

import errno
import os

import pytest

from serving.errors import find_shortage


@pytest.mark.parametrize(
    ("error", "missing"),
    [
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "file descriptors (limit nofile"),
        (OSError(errno.ENFILE, os.strerror(errno.ENFILE)), "file descriptors (of the whole machine)"),
        (BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), "processes or threads"),
        (RuntimeError("can't start new thread"), "processes or threads"),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "memory"),
        (MemoryError(), "memory"),
    ],
)
def test_a_shortage(error: Exception, missing: str) -> None:
    """It names what is missing, and when to try again."""
    told = find_shortage(error)

    assert told is not None
    assert told.status == "UNAVAILABLE"
    assert f"The server is short of {missing}" in told.message
    assert told.retry_after


@pytest.mark.parametrize("error", [FileNotFoundError(errno.ENOENT, "x"), RuntimeError("x"), ValueError("x")])
def test_other_errors(error: Exception) -> None:
    """They are what they are."""
    assert find_shortage(error) is None
