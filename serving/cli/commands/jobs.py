"""`pilotlight jobs`."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from serving.cli.api_client import ApiClient, ServerUnreachable
from serving.cli.command_output import CommandOutput, TableColumns
from serving.cli.commands import resource_commands
from serving.cli.commands.nodes import format_duration
from serving.cli.commands.training import follow_training_job
from serving.cli.console import print_note
from serving.cli.flags import common_flags
from serving.cli.flags.batch_flags import BatchFlags
from serving.cli.flags.common_flags import LabelChangeFlags, ListFlags, drop_none
from serving.cli.formats.printers import print_table
from serving.cli.formats.value_parsers import make_choice_parser
from serving.cli.progress import job_polling
from serving.cli.progress.job_polling import JobLogSource
from serving.errors import FailedPrecondition

# What gcloud uses where it cannot prompt.
DEFAULT_REGION = "us-central1"
_MODEL_FIELDS = ("versionName", "modelName", "uri")

_COLUMNS: TableColumns = {
    "JOB_ID": lambda job: job["jobId"],
    "STATUS": lambda job: job.get("state", ""),
    "CREATED": lambda job: job.get("createTime", "").partition(".")[0].removesuffix("Z"),
}


def submit_prediction(
    client: ApiClient,
    output: CommandOutput,
    job: common_flags.JobArgument,
    *,
    model: Annotated[str | None, typer.Option(help="The model to ask.", show_default=False)] = None,
    version: Annotated[
        str | None,
        typer.Option(help="Its version; the default one when left out.", show_default=False),
    ] = None,
    model_dir: Annotated[
        str | None,
        typer.Option(
            help="A model folder that need not be deployed: gs://BUCKET/PATH or a path.", show_default=False
        ),
    ] = None,
    batch: BatchFlags,
    runtime_version: common_flags.RuntimeVersionOption = None,
    labels: common_flags.LabelsOption = None,
    stream_logs: Annotated[
        bool,
        typer.Option("--stream-logs", help="Follow the job until it ends.", show_default=False),
    ] = False,
    asynchronous: Annotated[
        bool, typer.Option("--async", help="Do not follow the job, as is the default.", show_default=False)
    ] = False,
) -> None:
    """Start a batch prediction: input files in, prediction files out.

    The model is --model (with or without --version) or --model-dir.
    Local paths are the server's. It goes on when this command has ended; with --stream-logs the exit code
    is 0 only if it succeeds.

    Example: pilotlight jobs submit prediction monday --model flowers --data-format json
    --input-paths 'gs://my-bucket/in/*' --output-path gs://my-bucket/out --region us-central1
    """
    if stream_logs and asynchronous:
        raise typer.BadParameter("Give either --stream-logs or --async, not both.")
    source = _build_model_source(client, model, version, model_dir)
    name = client.resolve_job_name(job)
    parent, _, job_id = name.rpartition("/")
    body = drop_none(
        jobId=job_id,
        predictionInput={
            **source,
            **batch.build_prediction_input(),
            **drop_none(region=client.region or DEFAULT_REGION, runtimeVersion=runtime_version),
        },
        batchOptions=batch.build_batch_options() or None,
        labels=common_flags.merge_labels(labels),
    )
    created = client.call("POST", parent, body)
    if not stream_logs:
        output.report_change(
            f"Submitted job {job_id}. To follow it: pilotlight jobs stream-logs {job_id}", created
        )
        return
    print_note(f"Submitted job {job_id}.")
    _follow_job(client, output, name, job_polling.POLL_SECONDS)


def describe_job(
    client: ApiClient,
    output: CommandOutput,
    job: common_flags.JobArgument,
    *,
    summarize: Annotated[
        bool, typer.Option("--summarize", help="Only what matters, as a table.", show_default=False)
    ] = False,
) -> None:
    """Show a job.

    Example: pilotlight jobs describe monday --summarize
    """
    found = client.call("GET", client.resolve_job_name(job))
    if summarize and output.format is None:
        print_table(("FIELD", "VALUE"), summarize_job(found, datetime.datetime.now(datetime.UTC)))
    else:
        output.show(found)


def list_jobs(client: ApiClient, output: CommandOutput, listing: ListFlags) -> None:
    """List the jobs of the project, newest first.

    Example: pilotlight jobs list --filter state:RUNNING
    """
    listing.show_resources(
        client, output, f"{client.project_name}/jobs", "jobs", _COLUMNS, parent=f"{client.project_name}/jobs/"
    )


def cancel_job(client: ApiClient, output: CommandOutput, job: common_flags.JobArgument) -> None:
    """End a job before its time; nothing of its output is kept. One that has ended stays as it is.

    Example: pilotlight jobs cancel monday
    """
    name = client.resolve_job_name(job)
    try:
        answer = client.call("POST", f"{name}:cancel", {})
    except FailedPrecondition:
        state = client.call("GET", name).get("state", "")
        if state not in job_polling.FINAL_STATES:
            raise
        output.report_change(f"Job {resource_commands.extract_id(name)} has ended before: {state}.", {})
        return
    output.report_change(f"Asked for job {resource_commands.extract_id(name)} to be cancelled.", answer)


def update_job(
    client: ApiClient, output: CommandOutput, job: common_flags.JobArgument, *, labels: LabelChangeFlags
) -> None:
    """Change a job's labels.

    Example: pilotlight jobs update monday --update-labels team=roses
    """
    if not labels:
        raise typer.BadParameter("Nothing to update: give at least one flag that says what to change.")
    name = client.resolve_job_name(job)
    current = client.call("GET", name)
    body = {"labels": labels.apply_to(current.get("labels", {})), "etag": current.get("etag", "")}
    changed = client.call("PATCH", name, body, {"updateMask": "labels"})
    output.report_change(f"Updated job {resource_commands.extract_id(name)}.", changed)


def stream_logs(
    client: ApiClient,
    output: CommandOutput,
    job: common_flags.JobArgument,
    *,
    polling_interval: Annotated[
        float, typer.Option(min=0.05, help="Seconds between two looks at the job.")
    ] = job_polling.POLL_SECONDS,
    task_name: Annotated[
        str | None,
        typer.Option(
            metavar="TASK",
            help="Only the log of this task: of a prediction service (the prediction) or server (who runs "
            "it), of a training job service or a replica, as master-replica-0.",
            show_default=False,
        ),
    ] = None,
    allow_multiline_logs: Annotated[
        bool,
        typer.Option(
            "--allow-multiline-logs",
            help="As gcloud has it. Records of several lines are always printed as they are.",
            show_default=False,
        ),
    ] = False,
) -> None:
    """Follow a job until it ends: its log, and of a prediction its records, rate, errors and time left.

    The exit code is 0 only if it succeeds.

    Example: pilotlight jobs stream-logs monday
    """
    name = client.resolve_job_name(job)
    if "trainingInput" in client.call("GET", name):
        follow_training_job(client, output, name, poll_seconds=polling_interval, task=task_name or "")
        return
    source = None if task_name is None else make_choice_parser(JobLogSource)(task_name)
    _follow_job(client, output, name, polling_interval, source)


def _build_model_source(
    client: ApiClient, model: str | None, version: str | None, model_dir: str | None
) -> dict[str, str]:
    if (model is None) == (model_dir is None):
        raise typer.BadParameter("Give exactly one of --model and --model-dir.")
    if model_dir is not None:
        if version is not None:
            raise typer.BadParameter("--version goes with --model, not with --model-dir.")
        return {"uri": common_flags.make_absolute(model_dir)}
    if version is not None:
        return {"versionName": client.resolve_version_name(str(model), version)}
    return {"modelName": client.resolve_model_name(str(model))}


def _follow_job(
    client: ApiClient, output: CommandOutput, name: str, poll_seconds: float, task: JobLogSource | None = None
) -> None:
    """Follow a job to its end; raises the error it ends with."""
    try:
        job = job_polling.follow_job(client, name, poll_seconds=poll_seconds, task=task)
    except (KeyboardInterrupt, ServerUnreachable):
        print_note(
            f"The job goes on. To follow it: pilotlight jobs stream-logs {resource_commands.extract_id(name)}"
        )
        raise
    job_polling.raise_job_error(job)
    output.report_change(f"Job {job['jobId']} SUCCEEDED: {_format_counts(job)}.", job)


def _format_counts(job: Mapping[str, Any]) -> str:
    """The numbers of predictions and errors, in words."""
    found = job.get("predictionOutput", {})
    text = f"{int(found.get('predictionCount', 0)):,} predictions"
    errors = int(found.get("errorCount", 0))
    return f"{text}, {errors:,} errors" if errors else text


def summarize_job(job: Mapping[str, Any], now: datetime.datetime) -> list[tuple[str, str]]:
    """What matters about a job, as rows of a table."""
    if "trainingInput" in job:
        return _summarize_training(job, now)
    prediction_input = job.get("predictionInput", {})
    found = job.get("predictionOutput", {})
    predictions, errors = (int(found.get(field, 0)) for field in ("predictionCount", "errorCount"))
    seconds = _compute_run_seconds(job, now)
    rows = [
        ("job", job["jobId"]),
        ("state", job.get("state", "")),
        ("model", next((prediction_input[key] for key in _MODEL_FIELDS if key in prediction_input), "")),
        ("input", ", ".join(prediction_input.get("inputPaths", ()))),
        ("output", prediction_input.get("outputPath", "")),
        ("predictions", f"{predictions:,}"),
        ("errors", f"{errors:,}"),
        ("rate", f"{(predictions + errors) / seconds:,.0f} records/s" if seconds else ""),
        ("duration", format_duration(seconds)),
        ("error", job.get("errorMessage", "")),
    ]
    return [(field, text) for field, text in rows if text]


def _summarize_training(job: Mapping[str, Any], now: datetime.datetime) -> list[tuple[str, str]]:
    given, found = job["trainingInput"], job.get("trainingOutput", {})
    rows = [
        ("job", job["jobId"]),
        ("state", job.get("state", "")),
        ("module", given.get("pythonModule") or given.get("masterConfig", {}).get("imageUri", "")),
        ("tier", given.get("scaleTier") or "BASIC"),
        ("job dir", given.get("jobDir", "")),
        ("ml units", f"{found['consumedMLUnits']:g}" if "consumedMLUnits" in found else ""),
        ("duration", format_duration(_compute_run_seconds(job, now))),
        ("error", job.get("errorMessage", "")),
    ]
    return [(field, text) for field, text in rows if text]


def _compute_run_seconds(job: Mapping[str, Any], now: datetime.datetime) -> float | None:
    if "startTime" not in job:
        return None
    end = datetime.datetime.fromisoformat(job["endTime"]) if "endTime" in job else now
    return (end - datetime.datetime.fromisoformat(job["startTime"])).total_seconds()
