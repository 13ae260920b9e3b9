"""What our processes log."""

from __future__ import annotations

import json
import logging
import sys

from serving.logs.formatters import JsonFormatter, TextFormatter


def line(message: str, *args: object, level: int = logging.INFO, error: bool = False) -> str:
    raised = sys.exc_info() if error else None
    return JsonFormatter().format(logging.LogRecord("a.b", level, "", 0, message, args, raised))


def test_a_line_is_an_object() -> None:
    """With the fields of Cloud Logging, also when the text has line breaks in it."""
    entry = json.loads(line("%s\nü", "one", level=logging.WARNING))

    assert entry.pop("time").endswith("Z")
    assert entry == {"severity": "WARNING", "message": "one\nü", "logger": "a.b"}


def test_a_traceback_is_in_the_message() -> None:
    """On the same line."""
    try:
        int("no")
    except ValueError:
        text = line("failed", level=logging.ERROR, error=True)

    assert "\n" not in text
    assert json.loads(text)["message"].startswith("failed\nTraceback")
    assert json.loads(text)["message"].endswith("'no'")


def test_a_line_of_text_controls_no_terminal() -> None:
    """What a model prints is in it; a traceback keeps its lines."""
    record = logging.LogRecord("a.b", logging.INFO, "", 0, "node 1: %s\ntwo", ("a\x1b[2J\r\x9b31mü",), None)

    assert TextFormatter("%(message)s").format(record) == "node 1: a\\x1b[2J\\r\\x9b31mü\ntwo"
