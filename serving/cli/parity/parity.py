"""`pilotlight parity`."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from serving.cli.api_client import ApiClient
from serving.cli.command_output import CommandOutput
from serving.cli.commands import jobs, resource_commands
from serving.cli.console import print_note
from serving.cli.flags import common_flags
from serving.cli.flags.batch_flags import BatchFlags
from serving.cli.flags.common_flags import LocalModelFlags
from serving.cli.flags.instance_flags import read_file_or_stdin
from serving.cli.local import local_batch
from serving.cli.parity.prediction_runs import (
    REQUEST_ROWS,
    InputRow,
    OnlinePredictor,
    open_batch_folder,
    parse_rows,
    read_batch_results,
    run_node_process,
    write_batch_input,
)
from serving.cli.parity.result_comparison import (
    ParityResult,
    RowDifference,
    RowRefusal,
    check_parity,
)
from serving.cli.progress import job_polling
from serving.errors import FailedPrecondition, InvalidArgument


def parity(
    client: ApiClient,
    output: CommandOutput,
    *,
    rows: Annotated[
        Path,
        typer.Option(
            "--input",
            parser=common_flags.parse_file_path,
            metavar="FILE",
            help="One JSON value per line, each an instance; - is stdin.",
            show_default=False,
        ),
    ],
    model: Annotated[str | None, typer.Option(help="A model on the server.", show_default=False)] = None,
    version: Annotated[
        str | None, typer.Option(help="Its version; the default one when left out.", show_default=False)
    ] = None,
    model_dir: Annotated[
        str | None,
        typer.Option(
            help="Or a model folder, gs://BUCKET/PATH or a path; no server is needed.", show_default=False
        ),
    ] = None,
    code: LocalModelFlags,
    signature_name: common_flags.SignatureNameOption = None,
    text: Annotated[
        bool,
        typer.Option(
            "--text",
            help="Each line is a text, for a SavedModel whose one input is a string.",
            show_default=False,
        ),
    ] = False,
    output_path: Annotated[
        str | None,
        typer.Option(
            help="A folder for the files of the batch prediction that the server reaches too; they stay. "
            "When left out, a temporary one on this machine.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Prove that online and batch prediction of a model say the same.

    The rows are predicted both online and in batch. Equal means identical to the bit for labels, trees and
    custom routines. Other numbers may differ by 4 units in the last place, or by what the model itself shows
    between batches of 1, 2 and 64 rows.
    The exit code is 0 if all rows are equal; the first difference is shown.

    Example: pilotlight parity --model flowers --input instances.jsonl
    """
    if (model is None) == (model_dir is None):
        raise typer.BadParameter("Give exactly one of --model and --model-dir.")
    data = read_file_or_stdin(rows)
    found = parse_rows(data, text=text)
    with open_batch_folder(output_path) as folder:
        flags = write_batch_input(folder, data, signature_name)
        if model_dir is not None:
            settings = code.load_node_settings(model_dir)
            with run_node_process(settings) as node:
                result = _compare_predictions(
                    OnlinePredictor(node, "projects/local/models/parity", signature_name, text),
                    lambda: local_batch.run_local_batch(settings, flags),
                    found,
                    flags.absolute_output,
                    exact=node.get_unversioned("/stats")["exact"],
                )
        else:
            name = _resolve_version_name(client, str(model), version)
            result = _compare_predictions(
                OnlinePredictor(client, name, signature_name, text),
                lambda: _run_job(client, name, flags),
                found,
                flags.absolute_output,
                exact=_must_be_exact(client, name),
            )
    _print_result(output, result, found)
    if not text and result.difference and found[result.difference.row].line.startswith(b'"'):
        print_note("A SavedModel whose one input is a string gets lines as they are in batch: try --text.")
    raise typer.Exit(0 if result.difference is None else 1)


def _compare_predictions(
    online: OnlinePredictor,
    run_batch: Callable[[], object],
    rows: Sequence[InputRow],
    results: str,
    *,
    exact: bool,
) -> ParityResult:
    """Predict the rows online and in batch. `exact`: nothing may differ by a bit.

    Raises InvalidArgument if no row is good.
    """
    from serving.runtimes.output_equality import BATCH_SIZES  # noqa: PLC0415  start-up time of the others

    answers = online.predict_rows(rows, REQUEST_ROWS)
    refusals = [answer for answer in answers if isinstance(answer, RowRefusal)]
    if len(refusals) == len(rows):
        raise InvalidArgument(f"There is nothing to compare: no row is accepted online. {refusals[0].reason}")
    run_batch()
    return check_parity(
        answers,
        read_batch_results(results, rows),
        None if exact else lambda: [online.predict_rows(rows, size) for size in BATCH_SIZES],
    )


def _resolve_version_name(client: ApiClient, model: str, version: str | None) -> str:
    """The full name of the version: online and batch use the same even if the default changes."""
    if version is not None:
        return client.resolve_version_name(model, version)
    found = client.call("GET", client.resolve_model_name(model))
    if "defaultVersion" not in found:
        raise FailedPrecondition(
            f"{resource_commands.format_title(found['name'])} has no default version; give --version."
        )
    name: str = found["defaultVersion"]["name"]
    return name


def _must_be_exact(client: ApiClient, version: str) -> bool:
    """Whether regrouping rows must not change a bit of the answers of a version, as its runtime says."""
    found = client.get_unversioned("/nodes")["versions"]
    return any(one["exact"] for one in found if one["version"] == version)


def _run_job(client: ApiClient, version: str, flags: BatchFlags) -> None:
    """Run a batch prediction on the server. Interrupted, it is cancelled."""
    project, _, _ = version.partition("/models/")
    job_id = f"parity_{secrets.token_hex(6)}"
    prediction_input = {
        "versionName": version,
        **flags.build_prediction_input(),
        "region": jobs.DEFAULT_REGION,
    }
    client.call("POST", f"{project}/jobs", {"jobId": job_id, "predictionInput": prediction_input})
    name = f"{project}/jobs/{job_id}"
    try:
        ended = job_polling.follow_job(client, name)
    except KeyboardInterrupt:
        client.call("POST", f"{name}:cancel", {})
        raise
    job_polling.raise_job_error(ended)


def _print_result(output: CommandOutput, result: ParityResult, rows: Sequence[InputRow]) -> None:
    difference = result.difference
    if output.format is not None:
        output.show(
            {
                "equal": difference is None,
                "rowsEqual": result.equal,
                "rowsRefused": result.refused,
                "largestDifference": result.largest_difference,
            }
            | ({} if difference is None else {"firstDifference": _describe_difference(difference, rows)})
        )
        return
    if difference is None:
        print(f"{result.equal} rows equal ({result.refused} refused by both).")
        if result.largest_difference:
            print_note(
                f"Not all of them to the bit: the largest difference is {result.largest_difference:g}."
            )
        return
    found = _describe_difference(difference, rows)
    print(f"Row {found['row']} differs; {result.equal} before it are equal.")
    for kind in ("online", "batch"):
        print(f"  {kind + ':':8}{json.dumps(found[kind], ensure_ascii=False)}")


def _describe_difference(difference: RowDifference, rows: Sequence[InputRow]) -> dict[str, Any]:
    """The number of the line that differs, and its online and batch results."""
    results = {"online": difference.online, "batch": difference.batch}
    return {"row": rows[difference.row].number} | {
        kind: {"refused": result.reason} if isinstance(result, RowRefusal) else result
        for kind, result in results.items()
    }
