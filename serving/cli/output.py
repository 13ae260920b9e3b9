"""What commands print: results on standard output, everything else on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from serving.cli.lines import note
from serving.log_lines import printable

Columns = Mapping[str, Callable[[Mapping[str, Any]], str]]

# What is not a terminal has no width: nothing is folded there.
_UNBOUNDED = 1_000_000


class Format(StrEnum):
    """How results are written."""

    DEFAULT = "default"
    JSON = "json"
    YAML = "yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The flags about talking to whoever runs the command, and the one place that does it."""

    format: Annotated[
        Format, typer.Option("--format", help="json and yaml print what the server sent, as it is.")
    ] = Format.DEFAULT
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Ask nothing; every answer is yes.", show_default=False)
    ] = False

    def show(self, resource: Any) -> None:
        """One resource, in full."""
        if self.format is Format.JSON:
            print(json.dumps(resource, indent=2, ensure_ascii=False))
        else:
            import yaml  # noqa: PLC0415  start-up time

            print(yaml.safe_dump(resource, sort_keys=False, allow_unicode=True), end="")

    def show_list(self, resources: Iterable[Mapping[str, Any]], columns: Columns) -> None:
        """Many resources, a line each: `columns` maps a heading to what stands below it."""
        rows = list(resources)
        if self.format is not Format.DEFAULT:
            self.show(rows)
        elif rows:
            print_table(list(columns), [[cell(row) for cell in columns.values()] for row in rows])
        else:
            note("Listed 0 items.")

    def done(self, what: str, resource: Any) -> None:
        """What a command has changed: a note for people, the resource for those who asked for a format."""
        note(what)
        if self.format is not Format.DEFAULT:
            self.show(resource)

    def show_predictions(self, answer: Mapping[str, Any]) -> None:
        """The answer to a prediction request: a table of objects, or one JSON value per line."""
        predictions = answer.get("predictions")
        if self.format is not Format.DEFAULT or not isinstance(predictions, list):
            self.show(answer)
        elif predictions and all(isinstance(prediction, dict) for prediction in predictions):
            headings = list(dict.fromkeys(key for prediction in predictions for key in prediction))
            print_table(
                headings,
                [
                    [_cell(prediction[key]) if key in prediction else "" for key in headings]
                    for prediction in predictions
                ],
            )
        else:
            for prediction in predictions:
                print(json.dumps(prediction, ensure_ascii=False))

    def confirm(self, question: str) -> None:
        """Ask, and end the command when the answer is no. Where nobody can answer, it is yes."""
        if not self.quiet and sys.stdin.isatty():
            typer.confirm(question, default=True, abort=True, err=True)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table without lines, as wide as its content."""
    from rich.console import Console  # noqa: PLC0415  start-up time
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(printable(heading), overflow="fold")
    for row in rows:
        table.add_row(*map(printable, row))
    width = None if sys.stdout.isatty() else _UNBOUNDED
    console = Console(markup=False, emoji=False, highlight=False, width=width)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().removesuffix("\n").split("\n"):
        print(line.rstrip())


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
