"""Reads the parts of a format or a filter."""

from __future__ import annotations

import re

from serving.cli.formats.keys import Key
from serving.errors import InvalidArgument

_NAME = re.compile(r"[A-Za-z0-9_@/-]+")
_QUOTES = "'\""


class Scanner:
    """A text and a position in it. `flag_name` is for error messages."""

    def __init__(self, text: str, flag_name: str) -> None:
        self.text = text
        self.flag_name = flag_name
        self.position = 0

    def error(self, problem: str) -> InvalidArgument:
        """An error that points at this place."""
        before, after = self.text[: self.position].strip(), self.text[self.position :].strip()
        return InvalidArgument(f"{self.flag_name}: {problem} at *HERE* in: {before} *HERE* {after}".rstrip())

    def skip_space(self) -> None:
        while self.position < len(self.text) and self.text[self.position].isspace():
            self.position += 1

    def is_at_end(self) -> bool:
        """Whether nothing but white space is left."""
        self.skip_space()
        return self.position >= len(self.text)

    def peek(self) -> str:
        """The next character that is not white space; "" at the end."""
        self.skip_space()
        return self.text[self.position : self.position + 1]

    def take(self, *marks: str) -> str:
        """The first of these marks that is next, which is skipped; "" if none is."""
        self.skip_space()
        for mark in marks:
            if self.text.startswith(mark, self.position):
                self.position += len(mark)
                return mark
        return ""

    def expect(self, mark: str) -> None:
        """Skip a mark. Raises InvalidArgument if it is not next."""
        if not self.take(mark):
            raise self.error(f"{mark!r} is expected")

    def take_word(self, *words: str) -> str:
        """The first of these whole words that is next, which is skipped; "" if none is."""
        self.skip_space()
        match = _NAME.match(self.text, self.position)
        if match is None or match[0] not in words:
            return ""
        self.position = match.end()
        return match[0]

    def read_name(self) -> str:
        """A name; quoted it may hold any character. Raises InvalidArgument if there is none."""
        if self.peek() in _QUOTES and self.peek():
            return self.read_quoted()
        match = _NAME.match(self.text, self.position)
        if match is None:
            raise self.error("a name is expected")
        self.position = match.end()
        return match[0]

    def read_quoted(self) -> str:
        """The text between two quotes of a kind; a backslash escapes the next character."""
        quote = self.peek()
        self.position += 1
        found = ""
        while self.position < len(self.text):
            one = self.text[self.position]
            self.position += 1
            if one == quote:
                return found
            if one == "\\" and self.text[self.position : self.position + 1] in (quote, "\\"):
                one = self.text[self.position]
                self.position += 1
            found += one
        raise self.error(f"the closing {quote} is missing")

    def read_value(self, ends: str) -> str:
        """A value: quoted, or all up to one of these characters or white space."""
        if self.peek() and self.peek() in _QUOTES:
            return self.read_quoted()
        start = self.position
        while self.position < len(self.text):
            one = self.text[self.position]
            if one in ends or one.isspace():
                break
            self.position += 1
        return self.text[start : self.position]

    def read_key(self) -> tuple[Key, str]:
        """A key, and the name of the transform that follows it, whose "(" is next; "" if there is none."""
        parts: list[str | int | None] = []
        while True:
            name = self.read_name()
            if self.text.startswith("(", self.position):
                return tuple(parts), name
            parts.append(name)
            while self.text.startswith("[", self.position):
                parts.append(self._read_index())
            if not self.text.startswith(".", self.position):
                return tuple(parts), ""
            self.position += 1

    def _read_index(self) -> int | None:
        self.expect("[")
        text = self.read_value("]")
        self.expect("]")
        if text in ("", "*"):
            return None
        try:
            return int(text)
        except ValueError as error:
            raise self.error(f"{text!r} is no index") from error
