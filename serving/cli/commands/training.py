"""`pilotlight jobs submit training`, and following a training job."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from serving import config
from serving.cli.api_client import ApiClient
from serving.cli.command_output import CommandOutput
from serving.cli.console import print_note
from serving.cli.flags import common_flags
from serving.cli.flags.common_flags import drop_none, make_absolute
from serving.cli.flags.training_flags import ProgramFlags, ReplicaFlags
from serving.cli.formats.value_parsers import parse_list
from serving.cli.progress.job_polling import FINAL_STATES, POLL_SECONDS, raise_job_error
from serving.cli.progress.operation_progress import wait_until_done
from serving.cli.reconnection import Reconnector
from serving.config import NodeConfig
from serving.errors import FailedPrecondition, NotFound

# What gcloud uses where it cannot prompt.
_BEST_TRIAL = "best"
_DEFAULT_REGION = "us-central1"
_PAGE_SIZE = 1000
_TRIAL_LABEL = "ml.googleapis.com/trial_id"


def submit_training(
    client: ApiClient,
    output: CommandOutput,
    job: common_flags.JobArgument,
    user_args: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGUMENTS]", help="Arguments for the program.")
    ] = None,
    *,
    program: ProgramFlags,
    replicas: ReplicaFlags,
    labels: common_flags.LabelsOption = None,
    stream_logs: Annotated[
        bool,
        typer.Option("--stream-logs", help="Print the log until the job ends.", show_default=False),
    ] = False,
    asynchronous: Annotated[
        bool, typer.Option("--async", help="Do not follow the job, as is the default.", show_default=False)
    ] = False,
) -> None:
    """Start a training job: a program that the server runs, on one replica or many.

    Of --package-path a wheel is built; nothing is written into the folder. With a server on this machine no
    bucket is needed. With --stream-logs the exit code is 0 only if the job succeeds.

    Example: pilotlight jobs submit training census_1 --package-path ./trainer --module-name trainer.task
    --job-dir /data/census_1 --stream-logs -- --epochs 2
    """
    if stream_logs and asynchronous:
        raise typer.BadParameter("Give either --stream-logs or --async, not both.")
    name = client.resolve_job_name(job)
    parent, _, job_id = name.rpartition("/")
    sent = program.read_job()
    given = {
        "region": client.region or _DEFAULT_REGION,
        **(sent.get("trainingInput") or {}),
        **drop_none(region=client.region or None),
        **program.build_fields(),
        **replicas.build_fields(),
    }
    if user_args:
        given["args"] = list(user_args)
    body = {
        **sent,
        "jobId": job_id,
        "trainingInput": given,
        **drop_none(labels=common_flags.merge_labels(labels)),
    }
    with _stage_packages(program, given.get("jobDir", "")) as uris:
        if uris:
            given["packageUris"] = uris
        created = client.call("POST", parent, body)
    if not stream_logs:
        output.report_change(
            f"Submitted job {job_id}. To follow it: pilotlight jobs stream-logs {job_id}", created
        )
        return
    print_note(f"Submitted job {job_id}.")
    follow_training_job(client, output, name)


def deploy_job(
    client: ApiClient,
    output: CommandOutput,
    job: common_flags.JobArgument,
    model: common_flags.ModelOption,
    *,
    version: Annotated[
        str | None,
        typer.Option(help="The version to create; the id of the job when left out.", show_default=False),
    ] = None,
    trial: Annotated[
        str,
        typer.Option(
            metavar="best|NUMBER",
            help="Of a tuning job, the trial whose model it is; the best one when left out.",
            show_default=False,
        ),
    ] = "",
    path: Annotated[
        str,
        typer.Option(
            metavar="FOLDER",
            help="The model's folder, below that of the job or trial; needed where there are several.",
            show_default=False,
        ),
    ] = "",
) -> None:
    """Deploy the model that a training job has made, and wait until it is ready.

    The server looks for it below the job's --job-dir. A model (the resource) that does not exist is created.

    Example: pilotlight jobs deploy census_1 --model census --version v1
    """
    from serving.gateway.jobs.kinds.training.deployment import choose_model  # noqa: PLC0415  start-up time

    name = client.resolve_job_name(job)
    found = client.call("GET", name)
    if "trainingInput" not in found:
        raise FailedPrecondition(f"{found['jobId']} is a prediction: it has no model.")
    if found["state"] != "SUCCEEDED":
        raise FailedPrecondition(
            f"Job {found['jobId']} is {found['state']}; only one that SUCCEEDED is deployed."
        )
    given = found["trainingInput"]
    if "hyperparameters" in given:
        trial = trial or _BEST_TRIAL
    elif trial:
        raise FailedPrecondition(f"{found['jobId']} is no tuning job: it has no trials.")
    answer = client.get_unversioned(f"/jobs/{name}/models", {"trial": trial} if trial else {})
    origin = choose_model(answer["models"], answer["folder"], path)
    target = client.resolve_version_name(model, version or found["jobId"])
    parent, _, version_id = target.rpartition("/")
    body = {
        "name": version_id,
        "deploymentUri": origin,
        **{field: given[field] for field in ("runtimeVersion", "pythonVersion") if given.get(field)},
    }
    _create_missing_model(client, parent.rpartition("/")[0])
    print_note(f"Deploying {origin}.")
    operation = client.call("POST", parent, body)
    created = wait_until_done(client, operation, f"Creating version {version_id}")
    output.report_change(f"Created version {version_id} of model {parent.split('/')[-2]}.", created)


def _create_missing_model(client: ApiClient, name: str) -> None:
    parent, _, model_id = name.rpartition("/")
    try:
        client.call("GET", name)
    except NotFound:
        client.call("POST", parent, {"name": model_id})
        print_note(f"Created model {model_id}.")


def follow_training_job(
    client: ApiClient,
    output: CommandOutput,
    name: str,
    *,
    poll_seconds: float = POLL_SECONDS,
    task: str = "",
) -> None:
    """Print the log of a job, or of one task of it, until the job ends; raises the error it ends with."""
    job_id = name.rpartition("/")[2]
    last: Mapping[str, Any] | None = None
    reconnector = Reconnector()
    try:
        while True:
            # First the job, then its log: what an ended job has logged is all there.
            job = reconnector.call(lambda: client.call("GET", name))
            for entry in _list_new_entries(client, reconnector, name, task, last):
                print(_format_entry(entry), flush=True)
                last = entry
            if job["state"] in FINAL_STATES:
                break
            time.sleep(poll_seconds)
    except KeyboardInterrupt:
        print_note(f"The job goes on. To follow it: pilotlight jobs stream-logs {job_id}")
        raise
    raise_job_error(job)
    output.report_change(f"Job {job_id} SUCCEEDED.", job)


@contextlib.contextmanager
def _stage_packages(program: ProgramFlags, job_dir: str) -> Iterator[list[str]]:
    """The URIs of all archives, the one of --package-path first; they stay where they are put."""
    archives = list(parse_list(program.packages)) if program.packages else []
    if program.package_path is None and not program.staging_bucket:
        yield [make_absolute(archive) for archive in archives]
        return
    from serving.cli.local.trainer_package import build_trainer_wheel, upload_archives  # noqa: PLC0415  start-up time

    target = program.staging_bucket or (f"{job_dir.rstrip('/')}/packages" if job_dir else _staging_folder())
    if program.package_path is None:
        yield upload_archives(archives, make_absolute(target))
        return
    output = Path(job_dir).absolute() if job_dir and "://" not in job_dir else None
    with build_trainer_wheel(program.package_path, leave_out=output) as wheel:
        yield upload_archives([wheel, *archives], make_absolute(target))


def _staging_folder() -> str:
    return str(config.load_config(NodeConfig, {}).cache_dir.expanduser() / "staging")


def _list_new_entries(
    client: ApiClient, reconnector: Reconnector, name: str, task: str, last: Mapping[str, Any] | None
) -> Iterator[Mapping[str, Any]]:
    """The entries of a job's log behind the last one."""
    project, job_id = name.split("/")[1], name.rpartition("/")[2]
    conditions = [f'resource.labels.job_id="{job_id}"']
    if task:
        conditions.append(f'resource.labels.task_name="{task}"')
    if last is not None:
        time_of_last = last["timestamp"]
        conditions.append(
            f'((timestamp="{time_of_last}" AND insertId>"{last["insertId"]}") OR timestamp>"{time_of_last}")'
        )
    asked: dict[str, Any] = {
        "resourceNames": [f"projects/{project}"],
        "filter": " AND ".join(conditions),
        "orderBy": "timestamp asc",
        "pageSize": _PAGE_SIZE,
    }
    while True:
        page = reconnector.call(lambda: client.post_unversioned("/v2/entries:list", asked))
        yield from page.get("entries", [])
        if not page.get("nextPageToken"):
            return
        asked["pageToken"] = page["nextPageToken"]


def _format_entry(entry: Mapping[str, Any]) -> str:
    """As gcloud prints it: severity, time, task, trial, text."""
    task = entry["resource"]["labels"].get("task_name", "")
    trial = entry.get("labels", {}).get(_TRIAL_LABEL, "")
    moment = f"{entry['timestamp'][:10]} {entry['timestamp'][11:19]}"
    return f"{entry['severity']}\t{moment} +0000\t{task}\t{trial}\t{entry.get('textPayload', '')}"
