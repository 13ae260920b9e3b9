"""`pilotlight jobs`."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from serving.cli import following, options, verbs
from serving.cli.batch_flags import BatchFlags
from serving.cli.client import Client, Unreachable
from serving.cli.following import Task
from serving.cli.lines import note
from serving.cli.nodes import format_duration
from serving.cli.options import LabelChanges, Listing, given
from serving.cli.output import Columns, Output
from serving.cli.parsing import choice, choices_of
from serving.cli.tables import print_table
from serving.errors import FailedPrecondition

# What gcloud takes where nobody can be asked.
REGION = "us-central1"

_COLUMNS: Columns = {
    "JOB_ID": lambda job: job["jobId"],
    "STATUS": lambda job: job.get("state", ""),
    "CREATED": lambda job: job.get("createTime", "").partition(".")[0].removesuffix("Z"),
}


def submit_prediction(
    client: Client,
    output: Output,
    job: options.JobArgument,
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
    runtime_version: Annotated[
        str | None,
        typer.Option(
            help="What the model was made for; `pilotlight runtimes` has which interpreter then computes it.",
            show_default=False,
        ),
    ] = None,
    labels: options.Labels = None,
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
    source = _source(client, model, version, model_dir)
    name = client.job(job)
    parent, _, job_id = name.rpartition("/")
    body = given(
        jobId=job_id,
        predictionInput={
            **source,
            **batch.prediction_input(),
            **given(region=client.region or REGION, runtimeVersion=runtime_version),
        },
        batchOptions=batch.batch_options() or None,
        labels=options.merged_labels(labels),
    )
    created = client.call("POST", parent, body)
    if not stream_logs:
        output.done(f"Submitted job {job_id}. To follow it: pilotlight jobs stream-logs {job_id}", created)
        return
    note(f"Submitted job {job_id}.")
    _follow(client, output, name, following.EVERY)


def describe(
    client: Client,
    output: Output,
    job: options.JobArgument,
    *,
    summarize: Annotated[
        bool, typer.Option("--summarize", help="Only what matters, as a table.", show_default=False)
    ] = False,
) -> None:
    """Show a job.

    Example: pilotlight jobs describe monday --summarize
    """
    found = client.call("GET", client.job(job))
    if summarize and output.format is None:
        print_table(("FIELD", "VALUE"), summary(found, datetime.datetime.now(datetime.UTC)))
    else:
        output.show(found)


def list_(client: Client, output: Output, listing: Listing) -> None:
    """List the jobs of the project, newest first.

    Example: pilotlight jobs list --filter state:RUNNING
    """
    listing.show(client, output, f"{client.project}/jobs", "jobs", _COLUMNS, parent=f"{client.project}/jobs/")


def cancel(client: Client, output: Output, job: options.JobArgument) -> None:
    """End a job before its time; nothing of its output is kept. One that has ended stays as it is.

    Example: pilotlight jobs cancel monday
    """
    name = client.job(job)
    try:
        answer = client.call("POST", f"{name}:cancel", {})
    except FailedPrecondition:
        state = client.call("GET", name).get("state", "")
        if state not in following.ENDED:
            raise
        output.done(f"Job {verbs.bare(name)} has ended before: {state}.", {})
        return
    output.done(f"Asked for job {verbs.bare(name)} to be cancelled.", answer)


def update(client: Client, output: Output, job: options.JobArgument, *, labels: LabelChanges) -> None:
    """Change a job's labels.

    Example: pilotlight jobs update monday --update-labels team=roses
    """
    if not labels:
        raise typer.BadParameter("Nothing to update: give at least one flag that says what to change.")
    name = client.job(job)
    current = client.call("GET", name)
    body = {"labels": labels.applied(current.get("labels", {})), "etag": current.get("etag", "")}
    changed = client.call("PATCH", name, body, {"updateMask": "labels"})
    output.done(f"Updated job {verbs.bare(name)}.", changed)


def stream_logs(
    client: Client,
    output: Output,
    job: options.JobArgument,
    *,
    polling_interval: Annotated[
        float, typer.Option(min=0.05, help="Seconds between two looks at the job.")
    ] = following.EVERY,
    task_name: Annotated[
        Any,
        typer.Option(
            parser=choice(Task),
            metavar=choices_of(Task),
            help="Only the log of this task: service (the prediction) or server (who runs it).",
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
    """Follow a job until it ends: its records, rate, errors, time left, and its log.

    The exit code is 0 only if it succeeds.

    Example: pilotlight jobs stream-logs monday
    """
    _follow(client, output, client.job(job), polling_interval, task_name)


def _source(client: Client, model: str | None, version: str | None, model_dir: str | None) -> dict[str, str]:
    """The field that says which model is meant."""
    if (model is None) == (model_dir is None):
        raise typer.BadParameter("Give exactly one of --model and --model-dir.")
    if model_dir is not None:
        if version is not None:
            raise typer.BadParameter("--version goes with --model, not with --model-dir.")
        return {"uri": options.absolute(model_dir)}
    if version is not None:
        return {"versionName": client.version(str(model), version)}
    return {"modelName": client.model(str(model))}


def _follow(client: Client, output: Output, name: str, every: float, task: Task | None = None) -> None:
    """Follow a job to its end; raises the error it ends with."""
    try:
        job = following.until_end(client, name, every=every, task=task)
    except (KeyboardInterrupt, Unreachable):
        note(f"The job goes on. To follow it: pilotlight jobs stream-logs {verbs.bare(name)}")
        raise
    following.check(job)
    output.done(f"Job {job['jobId']} SUCCEEDED: {_counts(job)}.", job)


def _counts(job: Mapping[str, Any]) -> str:
    """What has come of a job's records, in words."""
    found = job.get("predictionOutput", {})
    text = f"{int(found.get('predictionCount', 0)):,} predictions"
    errors = int(found.get("errorCount", 0))
    return f"{text}, {errors:,} errors" if errors else text


def summary(job: Mapping[str, Any], now: datetime.datetime) -> list[tuple[str, str]]:
    """What matters about a job, as rows of a table."""
    given_ = job.get("predictionInput", {})
    found = job.get("predictionOutput", {})
    predictions, errors = (int(found.get(field, 0)) for field in ("predictionCount", "errorCount"))
    seconds = _seconds(job, now)
    rows = [
        ("job", job["jobId"]),
        ("state", job.get("state", "")),
        ("model", next((given_[key] for key in ("versionName", "modelName", "uri") if key in given_), "")),
        ("input", ", ".join(given_.get("inputPaths", ()))),
        ("output", given_.get("outputPath", "")),
        ("predictions", f"{predictions:,}"),
        ("errors", f"{errors:,}"),
        ("rate", f"{(predictions + errors) / seconds:,.0f} records/s" if seconds else ""),
        ("duration", format_duration(seconds)),
        ("error", job.get("errorMessage", "")),
    ]
    return [(field, text) for field, text in rows if text]


def _seconds(job: Mapping[str, Any], now: datetime.datetime) -> float | None:
    """For how long it has run, or did."""
    if "startTime" not in job:
        return None
    end = datetime.datetime.fromisoformat(job["endTime"]) if "endTime" in job else now
    return (end - datetime.datetime.fromisoformat(job["startTime"])).total_seconds()
