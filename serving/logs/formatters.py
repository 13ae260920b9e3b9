"""Formats of the server's own log lines on standard error: text, or JSON for Cloud Logging."""

from __future__ import annotations

import datetime
import logging
import sys

import orjson

TEXT, JSON = "text", "json"
_TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def escape_control_characters(text: str) -> str:
    """A line with its control characters escaped, except tabs."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one == "\t" else one.encode("unicode_escape").decode() for one in text
    )


def escape_each_line(text: str) -> str:
    """Escape control characters, except tabs and newlines."""
    return "\n".join(map(escape_control_characters, text.split("\n")))


class TextFormatter(logging.Formatter):
    """Escapes control characters: output of models and names from clients must not control a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return escape_each_line(super().format(record))


class JsonFormatter(logging.Formatter):
    """A JSON object per line; a traceback is part of the message, as Error Reporting expects."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if record.exc_info:
            message = f"{message}\n{self.formatException(record.exc_info)}"
        time = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        entry = {
            "severity": record.levelname,
            "time": time.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "message": message,
            "logger": record.name,
        }
        return orjson.dumps(entry).decode()


def configure_logging(form: str) -> None:
    """Log to standard error in the format TEXT or JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == JSON else TextFormatter(_TEXT_FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
