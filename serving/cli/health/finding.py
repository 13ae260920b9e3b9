"""What a check says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is: nothing, something that may hurt one day, something that does not work."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """`check` is the name of what was looked at, `message` what was seen, `advice` what to do about it."""

    check: str
    level: Level
    message: str
    advice: str = ""


def ok(check: str, message: str) -> Finding:
    """All is well."""
    return Finding(check, Level.OK, message)


def warn(check: str, message: str, advice: str) -> Finding:
    """It works, and may not always."""
    return Finding(check, Level.WARN, message, advice)


def fail(check: str, message: str, advice: str) -> Finding:
    """It does not work."""
    return Finding(check, Level.FAIL, message, advice)


def size(count: int) -> str:
    """A number of bytes as people say it."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
