"""Finds out how severe a line of output is."""

from __future__ import annotations

import re

INFO, ERROR = "INFO", "ERROR"
_NAMES = {"DEBUG": "DEBUG", "INFO": INFO, "WARNING": "WARNING", "WARN": "WARNING", "ERROR": ERROR,
          "CRITICAL": "CRITICAL", "FATAL": "CRITICAL"}  # fmt: skip
_LETTERS = {"I": INFO, "W": "WARNING", "E": ERROR, "F": "CRITICAL"}
# Python's logging ("WARNING:root:...", "2026-01-31 12:00:00,123 WARNING ..."), and that of TensorFlow and of
# other C++ programs ("2026-01-31 12:00:00.123456: W tensorflow/...", "W0131 12:00:00.123456 ...").
_NAMED = re.compile(rf"(?:[\d:,. TZ+/-]*[\[(]?)({'|'.join(_NAMES)})\b")
_LETTERED = re.compile(r"(?:[\d-]+ [\d:.]+: ([IWEF]) |([IWEF])\d{4} \d\d:\d\d:\d\d)")


class SeverityParser:
    """Reads the standard error of one process line by line: tracebacks have several lines."""

    def __init__(self) -> None:
        self._in_traceback = False

    def parse(self, line: str) -> str:
        """The severity that the line names; INFO for those that name none."""
        if line.startswith("Traceback (most recent call last)"):
            self._in_traceback = True
            return ERROR
        if self._in_traceback:
            self._in_traceback = not line or line[0].isspace()
            return ERROR
        if named := _NAMED.match(line):
            return _NAMES[named[1]]
        if lettered := _LETTERED.match(line):
            return _LETTERS[lettered[1] or lettered[2]]
        return INFO
