"""Texts of others on pages: names, labels, errors, log lines and predictions are text and nothing else."""

from __future__ import annotations

import re
from typing import Any

from markupsafe import Markup

_MAX_LENGTH = 20_000
_CREDENTIALS = re.compile(r"//[^/@\s]*@")
# Control characters but tab and line break, those that change the direction of text or show nothing, line
# separators of Unicode, and halves of surrogate pairs.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


def make_visible(text: str, longest: int = _MAX_LENGTH) -> str:
    """The text, cut at `longest`, with escapes for characters that show nothing or reorder others."""
    if len(text) > longest:
        left_out = len(text) - longest
        text = f"{text[:longest]} … ({left_out:,} more characters)"
    return text if text.isascii() and text.isprintable() else _INVISIBLE.sub(_escape, text)


def hide_credentials(text: str) -> str:
    """Without the name and the password of an address."""
    return _CREDENTIALS.sub("//…@", text)


def finalize_output(value: Any) -> Any:
    """What a template prints for a value, before it is escaped."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return make_visible(value)
    return "" if value is None else value


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
