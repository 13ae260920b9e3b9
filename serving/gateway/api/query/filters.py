"""The `filter` of list methods: `state:READY AND (name:census* OR labels.team=ads)`.

    filter = term {["AND"] term | "OR" term};  term = ["NOT" | "-"] (comparison | "(" filter ")")
    comparison = field (":" | "=" | "!=") value

`=` is equality, `:` also finds a value in the last part of a resource name; `*` at the end of a value
matches any rest. OR binds tighter than AND, as in all Google APIs (AIP-160). Filters of logs, which have the
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
_MAX_TOKENS = 200

ResourcePredicate = Callable[[dict[str, Any]], bool]


@dataclass(frozen=True, slots=True)
class Comparison:
    field: str
    operator: str
    value: str


@dataclass(frozen=True, slots=True)
class Negation:
    part: FilterExpression


@dataclass(frozen=True, slots=True)
class Conjunction:
    parts: tuple[FilterExpression, ...]


@dataclass(frozen=True, slots=True)
class Disjunction:
    parts: tuple[FilterExpression, ...]


FilterExpression = Comparison | Negation | Conjunction | Disjunction

_OPERATORS = (":", "=", "!=")
_TOKEN = re.compile(
    r"""\s*(?:(?P<mark>[()]|-(?=[A-Za-z(]))|(?P<field>[A-Za-z_][\w.-]*)\s*(?P<test>[!<>]=|[:=<>])\s*"""
    r"""(?:"(?P<quoted>[^"]*)"|(?P<bare>[^\s()"]+))|(?P<word>AND|OR|NOT)\b)"""
)


def compile_filter(text: str) -> ResourcePredicate:
    """Compile the test that a filter describes; an empty one matches everything. Raises InvalidArgument."""
    return compile_expression(parse_expression(text), _compile_comparison)


def parse_expression(text: str) -> FilterExpression:
    """An empty filter becomes a conjunction without parts. Raises InvalidArgument."""
    tokens = _tokenize_filter(text)
    if not tokens:
        return Conjunction(())
    part = _parse_conjunction(tokens)
    if tokens:
        raise _filter_error(text)
    return part


def compile_expression(
    part: FilterExpression, comparison: Callable[[Comparison], Callable[[T], bool]]
) -> Callable[[T], bool]:
    """Compile the test that a part describes; `comparison` compiles comparisons."""
    match part:
        case Comparison():
            return comparison(part)
        case Negation(part=inner):
            test = compile_expression(inner, comparison)
            return lambda tested: not test(tested)
        case Conjunction(parts=parts):
            tests = [compile_expression(one, comparison) for one in parts]
            return lambda tested: all(test(tested) for test in tests)
        case Disjunction(parts=parts):
            tests = [compile_expression(one, comparison) for one in parts]
            return lambda tested: any(test(tested) for test in tests)


def find_required_values(part: FilterExpression, field: str) -> frozenset[str] | None:
    """The values of which a field must have one to match; None if it may have any other too."""
    match part:
        case Comparison(field=named, operator=":" | "=", value=value) if named == field and "*" not in value:
            return frozenset([value])
        case Conjunction(parts=parts):
            found = [find_required_values(one, field) for one in parts]
            known = [values for values in found if values is not None]
            return frozenset.intersection(*known) if known else None
        case Disjunction(parts=parts):
            found = [find_required_values(one, field) for one in parts]
            known = [values for values in found if values is not None]
            return frozenset.union(*known) if len(known) == len(found) else None
    return None


def _tokenize_filter(text: str) -> list[re.Match[str]]:
    tokens, position = [], 0
    while text[position:].strip():
        match = _TOKEN.match(text, position)
        if match is None:
            raise _filter_error(text)
        tokens.append(match)
        position = match.end()
        if len(tokens) > _MAX_TOKENS:
            raise field_error(InvalidArgument, "filter", f"It has over {_MAX_TOKENS} parts.")
    return tokens


def _parse_conjunction(tokens: list[re.Match[str]]) -> FilterExpression:
    parts = [_parse_disjunction(tokens)]
    while tokens and tokens[0]["mark"] != ")":
        if tokens[0]["word"] == "AND":
            tokens.pop(0)
        parts.append(_parse_disjunction(tokens))
    return parts[0] if len(parts) == 1 else Conjunction(tuple(parts))


def _parse_disjunction(tokens: list[re.Match[str]]) -> FilterExpression:
    parts = [_parse_term(tokens)]
    while tokens and tokens[0]["word"] == "OR":
        tokens.pop(0)
        parts.append(_parse_term(tokens))
    return parts[0] if len(parts) == 1 else Disjunction(tuple(parts))


def _parse_term(tokens: list[re.Match[str]]) -> FilterExpression:
    if not tokens:
        raise _filter_error("")
    token = tokens.pop(0)
    if token["word"] == "NOT" or token["mark"] == "-":
        return Negation(_parse_term(tokens))
    if token["mark"] == "(":
        inner = _parse_conjunction(tokens)
        if not tokens or tokens.pop(0)["mark"] != ")":
            raise _filter_error("a parenthesis is not closed")
        return inner
    if token["field"]:
        value = token["quoted"] if token["quoted"] is not None else token["bare"]
        return Comparison(token["field"], token["test"], value)
    raise _filter_error(token[0])


def _compile_comparison(asked: Comparison) -> ResourcePredicate:
    field, test, value = asked.field, asked.operator, asked.value
    if test not in _OPERATORS:
        raise _filter_error(f"{field} {test} {value}")

    def matches(resource: dict[str, Any]) -> bool:
        found = _read_field(resource, field)
        names = {found, found.rsplit("/", 1)[-1]} if test == ":" or field == "name" else {found}
        hit = any(name.startswith(value[:-1]) if value.endswith("*") else name == value for name in names)
        return hit != (test == "!=")

    return matches


def _read_field(resource: dict[str, Any], field: str) -> str:
    """Read a field as text, "" when it is absent; label keys keep their underscores."""
    found: Any = resource
    inside_labels = False
    for part in field.split("."):
        found = (
            found.get(part if inside_labels else to_camel_case(part), "") if isinstance(found, dict) else ""
        )
        inside_labels = part == "labels"
    return str(found).lower() if isinstance(found, bool) else str(found)


def _filter_error(text: str) -> InvalidArgument:
    return InvalidArgument(
        f"Field: filter Error: Cannot read the filter ({text}). Example: state:READY AND name:census*",
        field="filter",
    )
