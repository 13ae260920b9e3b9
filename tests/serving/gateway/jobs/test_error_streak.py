"""Errors of the server's own, one after the other."""

from __future__ import annotations

import errno

import pytest

from serving.errors import Internal, Unavailable
from serving.gateway.jobs.error_streak import ErrorStreak

NONE = ErrorStreak((1.0, 5.0))


def add(*errors: Exception) -> ErrorStreak:
    streak = NONE
    for error in errors:
        streak = streak.add(error)
    return streak


def test_another_try_comes_later_each_time_until_there_is_none() -> None:
    one, two, three = (add(*[KeyError("x")] * count) for count in (1, 2, 3))

    assert [streak.delay for streak in (one, two, three)] == [1.0, 5.0, 5.0]
    assert [streak.is_exhausted for streak in (one, two, three)] == [False, False, True]
    assert three.reason == "KeyError: 'x'"
    assert add(Internal("A word for the owner.")).reason == "A word for the owner."


@pytest.mark.parametrize(
    "error",
    [
        Unavailable("The state file cannot be written."),
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EROFS, "Read-only file system"),
        RuntimeError("can't start new thread"),
    ],
)
def test_what_passes_is_waited_for(error: Exception) -> None:
    """It makes no job fail, and what comes between counts."""
    assert not add(*[error] * 20).is_exhausted
    assert not add(KeyError(), error, KeyError(), error).is_exhausted
    assert add(KeyError(), error, KeyError(), error, KeyError()).is_exhausted
