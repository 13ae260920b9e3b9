"""Tables on standard output."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Literal, cast

from serving.logs.formatters import escape_control_characters

# The width where standard output is no terminal: nothing is folded there.
_UNBOUNDED = 1_000_000

_Alignment = Literal["left", "center", "right"]


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
