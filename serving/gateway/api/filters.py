"""The `filter` of list methods: `state:READY AND (name:census* OR labels.team=ads)`.

    filter = term {["AND"] term | "OR" term};  term = ["NOT" | "-"] (comparison | "(" filter ")")
    comparison = field (":" | "=" | "!=") value

`=` is equality, `:` also finds a value in the last part of a resource name; `*` at the end of a value
matches any rest. OR binds tighter than AND, as in all Google APIs (AIP-160).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from serving.errors import InvalidArgument, field_error
from serving.resources import camel

# Parentheses and NOTs nest, and Python's stack is finite.
_MOST_PARTS = 200

Matches = Callable[[dict[str, Any]], bool]

_TOKEN = re.compile(
    r"""\s*(?:(?P<mark>[()]|-(?=[A-Za-z(]))|(?P<field>[A-Za-z_][\w.-]*)\s*(?P<test>!=|[:=])\s*"""
    r"""(?:"(?P<quoted>[^"]*)"|(?P<bare>[^\s()"]+))|(?P<word>AND|OR|NOT)\b)"""
)


def parse_filter(text: str) -> Matches:
    """The test that a filter describes; an empty filter matches everything. Raises InvalidArgument."""
    tokens = _tokenise(text)
    if not tokens:
        return lambda _: True
    matches = _parse_all(tokens)
    if tokens:
        raise _bad(text)
    return matches


def _tokenise(text: str) -> list[re.Match[str]]:
    tokens, position = [], 0
    while text[position:].strip():
        match = _TOKEN.match(text, position)
        if match is None:
            raise _bad(text)
        tokens.append(match)
        position = match.end()
        if len(tokens) > _MOST_PARTS:
            raise field_error(InvalidArgument, "filter", f"It has over {_MOST_PARTS} parts.")
    return tokens


def _parse_all(tokens: list[re.Match[str]]) -> Matches:
    parts = [_parse_any(tokens)]
    while tokens and tokens[0]["mark"] != ")":
        if tokens[0]["word"] == "AND":
            tokens.pop(0)
        parts.append(_parse_any(tokens))
    return lambda resource: all(part(resource) for part in parts)


def _parse_any(tokens: list[re.Match[str]]) -> Matches:
    parts = [_parse_term(tokens)]
    while tokens and tokens[0]["word"] == "OR":
        tokens.pop(0)
        parts.append(_parse_term(tokens))
    return lambda resource: any(part(resource) for part in parts)


def _parse_term(tokens: list[re.Match[str]]) -> Matches:
    if not tokens:
        raise _bad("")
    token = tokens.pop(0)
    if token["word"] == "NOT" or token["mark"] == "-":
        inner = _parse_term(tokens)
        return lambda resource: not inner(resource)
    if token["mark"] == "(":
        inner = _parse_all(tokens)
        if not tokens or tokens.pop(0)["mark"] != ")":
            raise _bad("a parenthesis is not closed")
        return inner
    if token["field"]:
        return _comparison(token)
    raise _bad(token[0])


def _comparison(token: re.Match[str]) -> Matches:
    field, test = token["field"], token["test"]
    value = token["quoted"] if token["quoted"] is not None else token["bare"]

    def matches(resource: dict[str, Any]) -> bool:
        found = _value(resource, field)
        names = {found, found.rsplit("/", 1)[-1]} if test == ":" or field == "name" else {found}
        hit = any(name.startswith(value[:-1]) if value.endswith("*") else name == value for name in names)
        return hit != (test == "!=")

    return matches


def _value(resource: dict[str, Any], field: str) -> str:
    """A field as text, "" when it is absent; label keys keep their underscores."""
    found: Any = resource
    inside_labels = False
    for part in field.split("."):
        found = found.get(part if inside_labels else camel(part), "") if isinstance(found, dict) else ""
        inside_labels = part == "labels"
    return str(found).lower() if isinstance(found, bool) else str(found)


def _bad(text: str) -> InvalidArgument:
    return InvalidArgument(
        f"Field: filter Error: Cannot read the filter ({text}). Example: state:READY AND name:census*",
        field="filter",
    )
