"""What pip says when it fails, in the words of who has to mend it: pure functions of its output."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from textwrap import dedent

_MAX_ERROR_LINES = 6
_CONFLICT = re.compile(r"The conflict is caused by:\n(.+?)(\n\n|\Z)", re.DOTALL)
_MISSING = re.compile(r"No matching distribution found for (.+)")
# A program of the archive, as setup.py, and what it has printed.
_BUILD = re.compile(r"\[\d+ lines? of output\]\n(.*?)\n?\s*\[end of output\]", re.DOTALL)
_EXIT_CODE = re.compile(r"exit code: (-?\d+)")
_TROUBLE = re.compile(r"\N{MULTIPLICATION SIGN} (.+)\n\s*╰─> (.+)")
_ERROR_LINE = re.compile(r"[\w.]*error\b.*:", re.IGNORECASE)
# What setuptools says where nothing has called setup(), and pip where the program ended before its time.
_NO_SETUP = re.compile(
    r"Exactly one \.egg-info should have been produced, but found 0"
    r"|No \.egg-info directory found"
    r"|No distribution was found"
    r"|No such file or directory: '[^']*output\.json'"
)


def explain_failure(output: str) -> str:
    """The reason, from pip's output."""
    if conflict := _CONFLICT.search(output):
        return _explain_conflict(conflict[1])
    if missing := _MISSING.search(output):
        return (
            f"it needs {missing[1]}, which the server does not have and no package index in reach offers. "
            "Give an archive of it too, or let the server reach an index (it reads pip's own settings)."
        )
    if _NO_SETUP.search(output):
        return "its setup.py does not call setup(), or ends before it does. Correct it."
    if build := _BUILD.search(output):
        return _explain_build(dedent(build[1]).splitlines(), output)
    if trouble := _TROUBLE.search(output):
        return f"{trouble[1]} {trouble[2]}"
    return _find_last_error(output.splitlines())


def is_conflict(output: str) -> bool:
    """Whether it failed because the packages need other versions than there are."""
    return _CONFLICT.search(output) is not None


def _explain_conflict(lines: str) -> str:
    lines = re.sub(r"The user requested \(constraint\) (\S+?)==(\S+)", r"the server has \1 \2", lines)
    lines = re.sub(r"The user requested (\S+) (\S+) \(from .+\)", r"the package is \1 \2", lines)
    sides = ", but ".join(line.strip() for line in lines.splitlines())
    return f"{sides}."


def _explain_build(said: Sequence[str], output: str) -> str:
    reason = _find_last_error(said)
    ended = _EXIT_CODE.search(output)
    if ended is None or _ERROR_LINE.match(reason):
        return reason
    how = _describe_exit(int(ended[1]))
    return f"the program that builds it {how}: {reason}" if reason else f"the program that builds it {how}."


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    known = -code in {one.value for one in signal.Signals}
    return f"was ended by signal {signal.Signals(-code).name if known else -code}"


def _find_last_error(lines: Sequence[str]) -> str:
    """The last error and what follows it, without the frames of tracebacks, which are indented."""
    said = [line.rstrip() for line in lines if line[:1].strip() and not line.startswith("Traceback ")]
    errors = [n for n, line in enumerate(said) if _ERROR_LINE.match(line)]
    start = errors[-1] if errors else max(0, len(said) - _MAX_ERROR_LINES)
    return "\n".join(said[start : start + _MAX_ERROR_LINES]).removeprefix("ERROR: ")
