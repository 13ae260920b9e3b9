"""What commands print: results on standard output, everything else on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from serving.cli.console import Verbosity, print_note
from serving.cli.formats.printers import format_lines, print_table
from serving.cli.formats.projection import FORMATS, OutputColumn, OutputFormat, parse_format, parse_key
from serving.cli.formats.records import flatten_lists
from serving.cli.formats.value_parsers import (
    format_choices,
    make_choice_parser,
    parse_lists,
    with_usage_errors,
)
from serving.logs.formatters import escape_control_characters

TableColumns = Mapping[str, Callable[[Mapping[str, Any]], str]]
RecordSelector = Callable[[Iterable[Any]], Iterable[Any]]

_FORMAT_HELP = (
    f"How results are written: {', '.join(FORMATS)}. What is shown may be chosen, as with gcloud: "
    "'value(name.basename())', 'table(name, labels.list())'. json and yaml print what the server sent."
)


def _select_all(records: Iterable[Any]) -> Iterable[Any]:
    return records


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOutput:
    """The flags for a command's output, and the one place that prints it."""

    format: Annotated[
        Any,
        typer.Option(
            "--format",
            parser=with_usage_errors(parse_format),
            metavar="FORMAT",
            help=_FORMAT_HELP,
            show_default=False,
        ),
    ] = None
    flatten: Annotated[
        list[str] | None,
        typer.Option(
            "--flatten",
            metavar="KEY,...",
            help="Lists to make a record of each element of, such as bindings[].members.",
            show_default=False,
        ),
    ] = None
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Ask nothing; every answer is yes.", show_default=False)
    ] = False
    verbosity: Annotated[
        Any,
        typer.Option(
            "--verbosity",
            parser=make_choice_parser(Verbosity),
            metavar=format_choices(Verbosity),
            help="Lowest level of messages on standard error; debug logs each HTTP call. Default: warning.",
            show_default=False,
        ),
    ] = None
    user_output_enabled: Annotated[
        bool,
        typer.Option("--user-output-enabled/--no-user-output-enabled", help="Print results and progress."),
    ] = True

    def show(self, resource: Any) -> None:
        self._print_records([resource] if self.flatten else resource)

    def show_list(
        self, resources: Iterable[Any], columns: TableColumns, select: RecordSelector = _select_all
    ) -> None:
        """Many resources, a line each: `columns` maps a heading to what stands below it.

        `select` sorts and leaves out, after lists are flattened.
        """
        if self.format is not None:
            self._print_records(list(resources), select)
            return
        rows = list(select(self._flatten_records(resources)))
        if not self.user_output_enabled:
            return
        if rows:
            print_table(list(columns), [[cell(row) for cell in columns.values()] for row in rows])
        else:
            print_note("Listed 0 items.")

    def show_selected(self, resource: Any, select: RecordSelector) -> None:
        """One resource; when it is flattened, `select` leaves out some of its parts."""
        self._print_records([resource] if self.flatten else resource, select)

    def report_change(self, what: str, resource: Any) -> None:
        """Print a note on what has changed; with a format, also the changed resource."""
        print_note(what)
        if self.format is not None:
            self.show(resource)

    def show_predictions(self, answer: Mapping[str, Any]) -> None:
        """The answer to a prediction request, as gcloud has it: a table of objects, else the list."""
        predictions = answer.get("predictions")
        if self.format is not None or not isinstance(predictions, list):
            self._print_records(answer, form=self.format or OutputFormat("json"))
        elif predictions and all(isinstance(prediction, dict) for prediction in predictions):
            names = sorted({name for prediction in predictions for name in prediction})
            self._print_records(
                predictions,
                form=OutputFormat("table", columns=tuple(OutputColumn((name,)) for name in names)),
            )
        else:
            table = OutputFormat("table", {"no-heading": ""}, (OutputColumn(("predictions",)),))
            self._print_records(answer, form=table)

    def print_line(self, text: str) -> None:
        """One line of a result that has no format."""
        if self.user_output_enabled:
            print(escape_control_characters(text))

    def confirm(self, question: str) -> None:
        """Ask, and end the command when the answer is no. Where nobody can answer, it is yes."""
        if not self.quiet and sys.stdin.isatty():
            typer.confirm(question, default=True, abort=True, err=True)

    def _flatten_records(self, records: Iterable[Any]) -> Iterable[Any]:
        return flatten_lists(
            records, [parse_key(key, "--flatten") for key in parse_lists(self.flatten or ())]
        )

    def _print_records(
        self, found: Any, select: RecordSelector = _select_all, form: OutputFormat | None = None
    ) -> None:
        """One record or a list of them, in `form`, else in the format that was given."""
        if isinstance(found, list):
            found = list(select(self._flatten_records(found)))
        if self.user_output_enabled:
            for line in format_lines(form or self.format or OutputFormat(), found):
                print(line)
