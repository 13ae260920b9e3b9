"""Records as text, in a format; tables on standard output.

Except in json and yaml, control characters in values are escaped.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, cast

from serving.cli.formats.keys import set_value
from serving.cli.formats.projection import OutputColumn, OutputFormat
from serving.cli.formats.records import sort_records
from serving.cli.formats.transforms import format_text
from serving.logs.formatters import escape_control_characters

# The width where standard output is no terminal: nothing is folded there.
_UNBOUNDED = 1_000_000

_Alignment = Literal["left", "center", "right"]


def format_lines(form: OutputFormat, found: Any) -> Iterable[str]:
    """The lines of one record, or of a list of them."""
    several = isinstance(found, list)
    records = found if several else [found]
    if columns := [column for column in form.columns if column.sort]:
        records = list(sort_records(records, sorted(columns, key=lambda column: column.sort)))
    return _PRINTERS[form.name](form, records, several)


def format_cell(value: Any) -> str:
    """A value in a cell of a table: a text as it is, lists and mappings as Python writes them."""
    return "" if value is None else str(value)


def _project_records(form: OutputFormat, records: Sequence[Any]) -> list[Any]:
    """The records reduced to the keys of the columns."""
    if not form.columns:
        return list(records)
    return [_project_record(form.columns, record) for record in records]


def _project_record(columns: Sequence[OutputColumn], record: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for column in columns:
        value = column.extract_value(record)
        if value is not None:
            set_value(found, column.key, value)
    return found


def _format_json(form: OutputFormat, records: Sequence[Any], several: bool) -> Iterator[str]:
    projected = _project_records(form, records)
    yield json.dumps(projected if several else projected[0], indent=2, ensure_ascii=False)


def _format_yaml(form: OutputFormat, records: Sequence[Any], several: bool) -> Iterator[str]:
    import yaml  # noqa: PLC0415  start-up time

    for record in _project_records(form, records):
        if several and "no-separator" not in form.attributes:
            yield "---"
        yield yaml.safe_dump(record, sort_keys=False, allow_unicode=True).removesuffix("\n")


def _format_table(form: OutputFormat, records: Sequence[Any], several: bool) -> Iterable[str]:
    cells = [[column.extract_value(record) for column in form.columns] for record in records]
    # An optional column without values is left out.
    kept = [
        number
        for number, column in enumerate(form.columns)
        if not column.optional or any(row[number] not in (None, "") for row in cells)
    ]
    columns = [form.columns[number] for number in kept]
    return format_table(
        [column.table_heading for column in columns],
        [[format_cell(row[number]) for number in kept] for row in cells],
        alignments=[column.align for column in columns],
        no_heading="no-heading" in form.attributes,
        boxed=not form.attributes.keys().isdisjoint({"box", "all-box"}),
        title=form.attributes.get("title", ""),
    )


def _format_value(form: OutputFormat, records: Sequence[Any], several: bool) -> Iterator[str]:
    separator = form.attributes.get("separator", "\t")
    for record in records:
        yield separator.join(_format_cells(form, record))


def _format_csv(form: OutputFormat, records: Sequence[Any], several: bool) -> Iterator[str]:
    if "no-heading" not in form.attributes:
        yield _format_csv_line(form, [column.csv_heading for column in form.columns])
    for record in records:
        yield _format_csv_line(form, _format_cells(form, record))


def _format_cells(form: OutputFormat, record: Any) -> list[str]:
    delimiter = form.attributes.get("delimiter", ";")
    cells = [
        escape_control_characters(format_text(column.extract_value(record), delimiter))
        for column in form.columns
    ]
    return [f'"{cell}"' for cell in cells] if form.name == "value" and "quote" in form.attributes else cells


def _format_csv_line(form: OutputFormat, cells: Sequence[str]) -> str:
    separator = form.attributes.get("separator", ",")
    if len(separator) != 1:
        return separator.join(cells)
    line = io.StringIO()
    csv.writer(line, delimiter=separator, lineterminator="").writerow(cells)
    return line.getvalue()


def _format_list(form: OutputFormat, records: Sequence[Any], several: bool) -> Iterator[str]:
    if title := form.attributes.get("title"):
        yield escape_control_characters(title)
    for record in records:
        if form.columns:
            values = [format_cell(column.extract_value(record)) for column in form.columns]
        elif isinstance(record, Mapping):
            values = [f"{key}: {format_cell(record[key])}" for key in sorted(record)]
        else:
            values = [format_cell(record)]
        if "compact" in form.attributes:
            values = [" ".join(filter(None, values))]
        for number, value in enumerate(values):
            yield escape_control_characters(f" - {value}" if number == 0 else f"   {value}")


def _format_flattened(form: OutputFormat, records: Sequence[Any], several: bool) -> Iterator[str]:
    separator = form.attributes.get("separator", ": ")
    for record in _project_records(form, records):
        if several:
            yield "---"
        pairs = list(_iterate_leaves(record, ""))
        width = 0 if "no-pad" in form.attributes else max((len(key) for key, _ in pairs), default=0)
        for key, value in pairs:
            yield escape_control_characters(f"{key}{separator}{' ' * max(0, width - len(key))}{value}")


def _iterate_leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key in sorted(value):
            yield from _iterate_leaves(value[key], f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value:
        for number, one in enumerate(value):
            yield from _iterate_leaves(one, f"{path}[{number}]")
    else:
        yield path, format_cell(value)


def _format_config(form: OutputFormat, records: Sequence[Any], several: bool) -> Iterator[str]:
    for record in _project_records(form, records):
        for line in _format_section(record, ""):
            yield escape_control_characters(line)


def _format_section(value: Any, path: str) -> Iterator[str]:
    """The scalar values of a mapping or a list, then a section for each nested one."""
    members = sorted(value.items()) if isinstance(value, Mapping) else list(enumerate(value))
    nested = [(key, one) for key, one in members if isinstance(one, Mapping | list)]
    for key, one in members:
        if not isinstance(one, Mapping | list):
            yield f"{key} = {format_cell(one)}"
    for key, one in nested:
        name = f"{path}.{key}" if path else str(key)
        yield f"[{name}]"
        yield from _format_section(one, name)


def _format_nothing(form: OutputFormat, records: Sequence[Any], several: bool) -> tuple[()]:
    return ()


_PRINTERS: Mapping[str, Callable[[OutputFormat, Sequence[Any], bool], Iterable[str]]] = {
    "config": _format_config,
    "csv": _format_csv,
    "default": _format_yaml,
    "disable": _format_nothing,
    "flattened": _format_flattened,
    "json": _format_json,
    "list": _format_list,
    "none": _format_nothing,
    "table": _format_table,
    "text": _format_flattened,
    "value": _format_value,
    "yaml": _format_yaml,
}


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table without lines, as wide as its content."""
    for line in format_table(headings, rows):
        print(line)


def format_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    alignments: Sequence[str] = (),
    no_heading: bool = False,
    boxed: bool = False,
    title: str = "",
) -> list[str]:
    """The lines of a table, as wide as its content; `alignments` has left, center or right per column."""
    from rich import box  # noqa: PLC0415  start-up time
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table(
        box=box.SQUARE if boxed else None,
        pad_edge=boxed,
        show_header=not no_heading,
        title=escape_control_characters(title) or None,
        title_style="",
        header_style="",
        # Two blanks between columns.
        padding=(0, 1) if boxed else (0, 2, 0, 0),
    )
    for heading, justify in zip(headings, alignments or ["left"] * len(headings), strict=True):
        table.add_column(
            escape_control_characters(heading), overflow="fold", justify=cast(_Alignment, justify)
        )
    for row in rows:
        table.add_row(*map(escape_control_characters, row))
    width = None if sys.stdout.isatty() else _UNBOUNDED
    console = Console(markup=False, emoji=False, highlight=False, width=width)
    with console.capture() as captured:
        console.print(table)
    return [line.rstrip() for line in captured.get().removesuffix("\n").split("\n")]
