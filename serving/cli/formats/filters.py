"""`--filter`: which records of a list are shown.

    filter     = term {["AND"] term} | term {"OR" term}; both in one group take parentheses
    term       = ["NOT" | "-"] (comparison | word | "(" filter ")")
    comparison = key operator (value | "(" value {[","] value} ")")

`=` is equality and `:` containment, both ignoring case; `*` in a value of `:` stands for any text; `~` is a
regular expression. A word is searched in all values. As in gcloud; besides, `name=v1`
and `name:v*` find the last part of a resource's full name.
"""

from __future__ import annotations

import datetime
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from serving.cli.formats.keys import Key, get_value
from serving.cli.formats.projection import read_transformed_key
from serving.cli.formats.scanner import Scanner
from serving.cli.formats.transforms import Transform
from serving.errors import InvalidArgument

RecordPredicate = Callable[[Any], bool]

# Bounds the recursion for nested parentheses and NOTs.
_MAX_DEPTH = 100
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d")
_ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
# Longer ones first.
_OPERATORS = ("!=", "!~", "<=", ">=", "<", ">", "=", ":", "~")


def parse_filter(text: str) -> RecordPredicate:
    """The test that a filter describes; an empty one matches everything. Raises InvalidArgument."""
    scanner = Scanner(text, "--filter")
    if scanner.is_at_end():
        return lambda _: True
    matches = _parse_expression(scanner, 0)
    if not scanner.is_at_end():
        raise scanner.error("nothing more is expected")
    return matches


def _parse_expression(scanner: Scanner, depth: int) -> RecordPredicate:
    if depth > _MAX_DEPTH:
        raise InvalidArgument(f"--filter: it is nested over {_MAX_DEPTH} levels deep.")
    parts = [_parse_term(scanner, depth)]
    used: set[str] = set()
    while not scanner.is_at_end() and scanner.peek() != ")":
        used.add(scanner.take_word("AND", "OR") or "AND")
        if len(used) > 1:
            raise scanner.error("parentheses are needed where AND and OR are combined")
        parts.append(_parse_term(scanner, depth))
    if used == {"OR"}:
        return lambda record: any(part(record) for part in parts)
    return lambda record: all(part(record) for part in parts)


def _parse_term(scanner: Scanner, depth: int) -> RecordPredicate:
    if scanner.take_word("NOT") or scanner.take("-"):
        inner = (
            _parse_term(scanner, depth + 1) if depth < _MAX_DEPTH else _parse_expression(scanner, depth + 1)
        )
        return lambda record: not inner(record)
    if scanner.take("("):
        inner = _parse_expression(scanner, depth + 1)
        scanner.expect(")")
        return inner
    if scanner.is_at_end() or scanner.take_word("AND", "OR"):
        raise scanner.error("a condition such as state=READY is expected")
    return _parse_comparison(scanner)


def _parse_comparison(scanner: Scanner) -> RecordPredicate:
    start = scanner.position
    if scanner.peek() in "'\"":
        return _build_word_test(scanner.read_quoted())
    key, transforms = read_transformed_key(scanner)
    sign = scanner.take(*_OPERATORS)
    if not sign:
        word = scanner.text[start : scanner.position].strip()
        if transforms:
            raise scanner.error("an operator such as = is expected")
        return _build_word_test(word)
    values = _read_values(scanner)
    test = _build_test(sign, values)

    def matches(record: Any) -> bool:
        return test(_evaluate_key(record, key, transforms))

    return matches


def _read_values(scanner: Scanner) -> tuple[str, ...]:
    if not scanner.take("("):
        quoted = scanner.peek() in ("'", '"')
        value = scanner.read_value("()")
        if not value and not quoted:
            raise scanner.error("a value is expected")
        return (value,)
    values: list[str] = []
    while not scanner.take(")"):
        if scanner.is_at_end():
            raise scanner.error("the closing ')' is missing")
        value = scanner.read_value(",()")
        if value != "OR":
            values.append(value)
        scanner.take(",")
    return tuple(values)


def _evaluate_key(record: Any, key: Key, transforms: tuple[Transform, ...]) -> Any:
    value = get_value(record, key)
    for transform in transforms:
        value = transform.apply(value)
    return value


def _build_test(sign: str, values: tuple[str, ...]) -> RecordPredicate:
    if sign in ("~", "!~"):
        try:
            patterns = [re.compile(value) for value in values]
        except re.error as error:
            raise InvalidArgument(f"--filter: {values} is no regular expression: {error}.") from error
        return _negate_if(
            sign == "!~",
            lambda found: any(
                pattern.search(_format_text(one)) for one in _iterate_values(found) for pattern in patterns
            ),
        )
    if sign in _ORDERS:
        order = _ORDERS[sign]
        return lambda found: any(
            _is_ordered(order, one, value) for one in _iterate_values(found) for value in values
        )
    same = _contains if sign == ":" else _is_equal
    return _negate_if(
        sign == "!=",
        lambda found: any(same(one, value) for one in _iterate_values(found) for value in values),
    )


def _negate_if(negative: bool, test: RecordPredicate) -> RecordPredicate:
    return (lambda found: not test(found)) if negative else test


def _iterate_values(found: Any) -> Iterator[Any]:
    """The values that one must match: those of a list, the keys and values of a mapping."""
    if isinstance(found, Mapping):
        yield from found
        yield from found.values()
    elif isinstance(found, list) and found:
        yield from found
    else:
        yield found


def _is_equal(found: Any, value: str) -> bool:
    if found is None:
        return not value
    return _is_equal_number(found, value) or any(name.lower() == value.lower() for name in _list_texts(found))


def _contains(found: Any, value: str) -> bool:
    if found is None:
        return not value
    if _is_equal_number(found, value):
        return True
    if "*" not in value:
        return value.lower() in _format_text(found).lower()
    pattern = ".*".join(map(re.escape, value.split("*")))
    return any(re.fullmatch(pattern, name, re.IGNORECASE | re.DOTALL) for name in _list_texts(found))


def _is_equal_number(found: Any, value: str) -> bool:
    if isinstance(found, bool) or not isinstance(found, int | float):
        return False
    try:
        return found == float(value)
    except ValueError:
        return False


def _is_ordered(order: Callable[[Any, Any], bool], found: Any, value: str) -> bool:
    if found is None:
        return False
    try:
        return order(float(found), float(value))
    except (TypeError, ValueError):
        pass
    text = _format_text(found)
    if _TIMESTAMP.match(text):
        try:
            return order(_parse_timestamp(text), _parse_timestamp(value))
        except ValueError:
            pass
    return order(text, value)


def _parse_timestamp(text: str) -> datetime.datetime:
    moment = datetime.datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)


def _list_texts(found: Any) -> tuple[str, ...]:
    """A value as text; for a resource's full name also its last part."""
    text = _format_text(found)
    return (text, text.rpartition("/")[2]) if text.startswith("projects/") else (text,)


def _format_text(found: Any) -> str:
    if isinstance(found, bool):
        return "true" if found else "false"
    return "" if found is None else str(found)


def _build_word_test(word: str) -> RecordPredicate:
    wanted = word.lower()

    def matches(record: Any) -> bool:
        if isinstance(record, Mapping):
            return any(map(matches, record.values()))
        if isinstance(record, list):
            return any(map(matches, record))
        return wanted in _format_text(record).lower()

    return matches
