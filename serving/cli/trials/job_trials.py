"""`pilotlight jobs trials`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from serving.cli.api_client import ApiClient
from serving.cli.command_output import CommandOutput, TableColumns
from serving.cli.console import print_note
from serving.cli.flags import common_flags
from serving.errors import FailedPrecondition

if TYPE_CHECKING:  # start-up time: trials are read with msgspec, which only this command needs
    from serving.cli.trials.trial_table import TrialTable
    from serving.gateway.api.studies.trial_rows import TrialRow


def list_trials(
    client: ApiClient,
    output: CommandOutput,
    job: common_flags.JobArgument,
    *,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print all trials as comma-separated values.", show_default=False)
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draw the best value over the trials, and each parameter against the metric, as PNG.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """List the trials of a tuning job, the best first, and how much each parameter matters.

    Example: pilotlight jobs trials tuned_1 --plot tuned_1.png
    """
    from serving.cli.trials.trial_plot import draw_trials  # noqa: PLC0415  start-up time
    from serving.cli.trials.trial_table import read_trial_table  # noqa: PLC0415

    name = client.resolve_job_name(job)
    found = client.call("GET", name)
    table = read_trial_table(client, found, name.partition("/jobs/")[0])
    if plot is not None:
        try:
            draw_trials(table, found["jobId"], plot)
        except OSError as error:
            raise FailedPrecondition(f"{plot} cannot be written: {error.strerror}.") from error
    if as_csv:
        for line in table.format_csv().splitlines():
            output.print_line(line)
        return
    show_table(output, table)


def show_table(output: CommandOutput, table: TrialTable) -> None:
    output.show_list([_to_record(row) for row in table.rows], _build_columns(table))
    _print_importance(table)


def _to_record(row: TrialRow) -> dict[str, Any]:
    from tuning.space import format_value  # noqa: PLC0415  start-up time

    return {
        "trialId": str(row.number),
        "state": row.state,
        "value": row.value,
        "step": row.step,
        "hyperparameters": {name: format_value(value) for name, value in row.parameters.items()},
        "seconds": row.seconds,
        "reason": row.reason,
    }


def _build_columns(table: TrialTable) -> TableColumns:
    def read_parameter(name: str) -> Any:
        return lambda record: _shorten_decimal(record["hyperparameters"].get(name, ""))

    return {
        "TRIAL": lambda record: record["trialId"],
        "STATE": lambda record: record["state"],
        table.metric: lambda record: "" if record["value"] is None else f"{record['value']:.6g}",
        "STEP": lambda record: "" if record["value"] is None else str(record["step"]),
        **{name: read_parameter(name) for name in table.parameters},
        "SECONDS": lambda record: "" if record["seconds"] is None else f"{record['seconds']:.0f}",
        "REASON": lambda record: record["reason"].strip().rpartition("\n")[2],
    }


def _shorten_decimal(text: str) -> str:
    """Six digits of a decimal say enough in a table."""
    try:
        return f"{float(text):.6g}" if "." in text or "e" in text else text
    except ValueError:
        return text


def _print_importance(table: TrialTable) -> None:
    shares: Mapping[str, float] = table.measure_importance()
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    if ordered:
        print_note(f"Share in {table.metric}: " + ", ".join(f"{name} {share:.0%}" for name, share in ordered))
