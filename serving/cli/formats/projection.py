"""A format as it is typed: `table[box](name.basename():label=ID, labels.team:sort=1)`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from serving.cli.formats.keys import Key, format_heading, get_value, last_name
from serving.cli.formats.scanner import Scanner
from serving.cli.formats.transforms import MAP, Transform, check_transform
from serving.errors import InvalidArgument

# Attributes of columns without and with a value, then those of formats.
_COLUMN_FLAGS = frozenset({"reverse", "wrap", "optional"})
_COLUMN_VALUES = frozenset({"label", "sort", "align"})
_ALIGNMENTS = ("left", "right", "center")
# The formats that require columns.
_COLUMN_FORMATS = frozenset({"csv", "table", "value"})
_ATTRIBUTES: Mapping[str, frozenset[str]] = {
    "config": frozenset(),
    "csv": frozenset({"no-heading", "separator", "delimiter", "quote"}),
    "default": frozenset(),
    "disable": frozenset(),
    "flattened": frozenset({"no-pad", "separator"}),
    "json": frozenset(),
    "list": frozenset({"title", "compact"}),
    "none": frozenset(),
    "table": frozenset({"no-heading", "box", "all-box", "title"}),
    "text": frozenset({"no-pad", "separator"}),
    "value": frozenset({"separator", "delimiter", "quote"}),
    "yaml": frozenset({"no-separator"}),
}
FORMATS = tuple(_ATTRIBUTES)


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """A key, the transforms of its value, and how it is shown. `sort` counts from 1; 0: not sorted by it."""

    key: Key
    transforms: tuple[Transform, ...] = ()
    label: str | None = None
    sort: int = 0
    reverse: bool = False
    align: str = "left"
    optional: bool = False

    def extract_value(self, record: Any) -> Any:
        value = get_value(record, self.key)
        for transform in self.transforms:
            value = transform.apply(value)
        return value

    @property
    def table_heading(self) -> str:
        """The heading in a table."""
        return format_heading(self.key) if self.label is None else self.label

    @property
    def csv_heading(self) -> str:
        """The heading in a CSV file."""
        return last_name(self.key) if self.label is None else self.label


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """The name of a format, its attributes, and the columns: none for whole records."""

    name: str = "default"
    attributes: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[OutputColumn, ...] = ()


def parse_format(text: str) -> OutputFormat:
    """The format that a text describes. Raises InvalidArgument with the place of a syntax error."""
    scanner = Scanner(text, "--format")
    name = scanner.read_name()
    if name not in _ATTRIBUTES:
        raise InvalidArgument(f"--format: unknown format {name!r}; known are {', '.join(FORMATS)}.")
    attributes = _read_attributes(scanner, name) if scanner.take("[") else {}
    columns = _read_columns(scanner) if scanner.take("(") else ()
    if not scanner.is_at_end():
        raise scanner.error("nothing more is expected")
    if name in _COLUMN_FORMATS and not columns:
        raise InvalidArgument(f"--format: {name} needs to be told what to show: {name}(name, labels.team).")
    return OutputFormat(name, attributes, columns)


def parse_sort_keys(texts: tuple[str, ...]) -> tuple[OutputColumn, ...]:
    """The columns of `--sort-by`; `~` before a key reverses. Raises InvalidArgument."""
    found = []
    for text in texts:
        scanner = Scanner(text, "--sort-by")
        reverse = bool(scanner.take("~"))
        key, transforms = read_transformed_key(scanner)
        if not scanner.is_at_end():
            raise scanner.error("nothing more is expected")
        found.append(OutputColumn(key, transforms, reverse=reverse))
    return tuple(found)


def parse_key(text: str, flag_name: str) -> Key:
    """One key. Raises InvalidArgument."""
    scanner = Scanner(text, flag_name)
    key, transform = scanner.read_key()
    if transform or not scanner.is_at_end():
        raise scanner.error("a key and nothing more is expected")
    return key


def read_transformed_key(scanner: Scanner) -> tuple[Key, tuple[Transform, ...]]:
    """A key with the transforms that follow it. Raises InvalidArgument."""
    key, name = scanner.read_key()
    transforms: list[Transform] = []
    list_depth = 0
    while name:
        scanner.expect("(")
        arguments, named = _read_arguments(scanner)
        if name == MAP:
            list_depth = int(arguments[0]) if arguments and arguments[0].isdecimal() else 1
        else:
            transform = Transform(name, arguments, named, list_depth)
            try:
                check_transform(transform)
            except InvalidArgument as error:
                raise InvalidArgument(f"{scanner.flag_name}: {error.message}") from error
            transforms.append(transform)
            list_depth = 0
        name = scanner.read_name() if scanner.take(".") else ""
    if not key:
        raise scanner.error("a key is expected before a transform")
    return key, tuple(transforms)


def _read_arguments(scanner: Scanner) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """The arguments of a transform, after its opening parenthesis."""
    arguments: list[str] = []
    named: list[tuple[str, str]] = []
    while not scanner.take(")"):
        if scanner.is_at_end():
            raise scanner.error("the closing ')' is missing")
        value = scanner.read_value(",)=")
        if value and scanner.take("="):
            named.append((value, scanner.read_value(",)")))
        else:
            arguments.append(value)
        if not scanner.take(",") and scanner.peek() != ")":
            raise scanner.error("',' or ')' is expected")
    return tuple(arguments), tuple(named)


def _read_attributes(scanner: Scanner, name: str) -> dict[str, str]:
    found: dict[str, str] = {}
    while not scanner.take("]"):
        attribute = scanner.read_name()
        if attribute not in _ATTRIBUTES[name]:
            known = ", ".join(sorted(_ATTRIBUTES[name])) or "none"
            raise InvalidArgument(f"--format: {name} has no attribute {attribute!r}; known: {known}.")
        found[attribute] = scanner.read_value(",]") if scanner.take("=") else ""
        if not scanner.take(",") and scanner.peek() != "]":
            raise scanner.error("',' or ']' is expected")
    return found


def _read_columns(scanner: Scanner) -> tuple[OutputColumn, ...]:
    found: list[OutputColumn] = []
    while not scanner.take(")"):
        found.append(_read_column(scanner))
        if not scanner.take(",") and scanner.peek() != ")":
            raise scanner.error("',' or ')' is expected")
    return tuple(found)


def _read_column(scanner: Scanner) -> OutputColumn:
    key, transforms = read_transformed_key(scanner)
    given: dict[str, str] = {}
    while scanner.take(":"):
        attribute = scanner.read_name()
        if attribute in _COLUMN_FLAGS:
            given[attribute] = "true"
            if scanner.take("="):
                given[attribute] = scanner.read_value(",):")
        elif attribute in _COLUMN_VALUES:
            scanner.expect("=")
            given[attribute] = scanner.read_value(",):")
        else:
            known = ", ".join(sorted(_COLUMN_FLAGS | _COLUMN_VALUES))
            raise scanner.error(f"columns have no attribute {attribute!r} (known: {known})")
    align, sort = given.get("align", "left"), given.get("sort", "0")
    if align not in _ALIGNMENTS or not sort.isdecimal():
        raise scanner.error("align is left, right or center, and sort a number")
    return OutputColumn(
        key,
        transforms,
        label=given.get("label"),
        sort=int(sort),
        reverse="reverse" in given,
        align=align,
        optional="optional" in given,
    )
