"""The `filter` of list methods: `state:READY AND (name:census* OR labels.team=ads)`.

    filter = term {["AND"] term | "OR" term};  term = ["NOT" | "-"] (comparison | "(" filter ")")
    comparison = field (":" | "=" | "!=") value

`=` is equality, `:` also finds a value in the last part of a resource name; `*` at the end of a value
matches any rest. OR binds tighter than AND, as in all Google APIs (AIP-160). Those of logs, which have the
same grammar, compare with `<`, `<=`, `>` and `>=` too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from serving.errors import InvalidArgument, field_error
from serving.resources import to_camel_case

T = TypeVar("T")

# Parentheses and NOTs nest, and Python's stack is finite.
_MOST_PARTS = 200

Matches = Callable[[dict[str, Any]], bool]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A field, how it is compared, and with what."""

    field: str
    test: str
    value: str


@dataclass(frozen=True, slots=True)
class Not:
    """What is not to hold."""

    part: Part


@dataclass(frozen=True, slots=True)
class All:
    """Parts that are to hold, each of them."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """Parts of which one is to hold."""

    parts: tuple[Part, ...]


Part = Comparison | Not | All | Either

_TESTS = (":", "=", "!=")
_TOKEN = re.compile(
    r"""\s*(?:(?P<mark>[()]|-(?=[A-Za-z(]))|(?P<field>[A-Za-z_][\w.-]*)\s*(?P<test>[!<>]=|[:=<>])\s*"""
    r"""(?:"(?P<quoted>[^"]*)"|(?P<bare>[^\s()"]+))|(?P<word>AND|OR|NOT)\b)"""
)


def parse_filter(text: str) -> Matches:
    """The test that a filter describes; an empty filter matches everything. Raises InvalidArgument."""
    return compile_part(parse(text), _comparison)


def parse(text: str) -> Part:
    """What a filter says; an empty one has no parts. Raises InvalidArgument."""
    tokens = _tokenise(text)
    if not tokens:
        return All(())
    part = _parse_all(tokens)
    if tokens:
        raise _bad(text)
    return part


def compile_part(part: Part, comparison: Callable[[Comparison], Callable[[T], bool]]) -> Callable[[T], bool]:
    """The test that a part describes, of what `comparison` makes tests for."""
    match part:
        case Comparison():
            return comparison(part)
        case Not(part=inner):
            test = compile_part(inner, comparison)
            return lambda tested: not test(tested)
        case All(parts=parts):
            tests = [compile_part(one, comparison) for one in parts]
            return lambda tested: all(test(tested) for test in tests)
        case Either(parts=parts):
            tests = [compile_part(one, comparison) for one in parts]
            return lambda tested: any(test(tested) for test in tests)


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


def _parse_all(tokens: list[re.Match[str]]) -> Part:
    parts = [_parse_any(tokens)]
    while tokens and tokens[0]["mark"] != ")":
        if tokens[0]["word"] == "AND":
            tokens.pop(0)
        parts.append(_parse_any(tokens))
    return parts[0] if len(parts) == 1 else All(tuple(parts))


def _parse_any(tokens: list[re.Match[str]]) -> Part:
    parts = [_parse_term(tokens)]
    while tokens and tokens[0]["word"] == "OR":
        tokens.pop(0)
        parts.append(_parse_term(tokens))
    return parts[0] if len(parts) == 1 else Either(tuple(parts))


def _parse_term(tokens: list[re.Match[str]]) -> Part:
    if not tokens:
        raise _bad("")
    token = tokens.pop(0)
    if token["word"] == "NOT" or token["mark"] == "-":
        return Not(_parse_term(tokens))
    if token["mark"] == "(":
        inner = _parse_all(tokens)
        if not tokens or tokens.pop(0)["mark"] != ")":
            raise _bad("a parenthesis is not closed")
        return inner
    if token["field"]:
        value = token["quoted"] if token["quoted"] is not None else token["bare"]
        return Comparison(token["field"], token["test"], value)
    raise _bad(token[0])


def _comparison(asked: Comparison) -> Matches:
    field, test, value = asked.field, asked.test, asked.value
    if test not in _TESTS:
        raise _bad(f"{field} {test} {value}")

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
        found = (
            found.get(part if inside_labels else to_camel_case(part), "") if isinstance(found, dict) else ""
        )
        inside_labels = part == "labels"
    return str(found).lower() if isinstance(found, bool) else str(found)


def _bad(text: str) -> InvalidArgument:
    return InvalidArgument(
        f"Field: filter Error: Cannot read the filter ({text}). Example: state:READY AND name:census*",
        field="filter",
    )
