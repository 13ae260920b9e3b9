"""Jobs: the list, one job with its progress and log, and what may be changed about it."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from serving.errors import FailedPrecondition, ServingError, http_status
from serving.gateway.console.field_parsers import format_labels, locate_error, parse_labels
from serving.gateway.console.forms import Form
from serving.gateway.console.projects import Elsewhere
from serving.gateway.console.visit import REFUSED_TO_VISITOR, Visit, action, page
from serving.resources import JobState

Json = dict[str, Any]

FINAL_STATES = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})
_PAGE_SIZE = 50
_LOG_PAGE_SIZE = 500
# Of one page of the list: each takes a call.
_MAX_WAIT_REASONS = 5
JOBS_PATH, JOB_PATH = "/projects/{project}/jobs", "/projects/{project}/jobs/{job}"


async def show_jobs(visit: Visit) -> Response:
    return visit.render("jobs.html", **await _read_list(visit))


async def show_job_list(visit: Visit) -> Response:
    """The table of jobs, which the page fetches again."""
    return visit.render_partial("_jobs.html", **await _read_list(visit))


async def _read_list(visit: Visit) -> Json:
    state, text = visit.query.get("state", ""), visit.query.get("filter", "").strip()
    query = {"pageSize": str(_PAGE_SIZE), "pageToken": visit.query.get("pageToken", "")}
    conditions = [f"state={state}"] if state else []
    conditions += [f"({text})"] if text else []
    if conditions:
        query["filter"] = " AND ".join(conditions)
    found = await visit.call("projects.jobs.list", query=query, project=visit.project)
    jobs = found.get("jobs", [])
    return {
        "project": visit.project,
        "rows": [(job, describe_job(job)) for job in jobs],
        "reasons": await _read_wait_reasons(visit, jobs),
        "states": [("", "All"), *((one.value, one.value) for one in JobState)],
        "chosen_state": state,
        "filter": text,
        "query": urlencode({key: value for key, value in visit.query.items() if key != "pageToken"}),
        "here_query": urlencode(dict(visit.query)),
        "next_token": found.get("nextPageToken", ""),
        "elsewhere": () if jobs or conditions else _find_elsewhere(visit),
        "may_create": visit.may("projects.jobs.create", project=visit.project),
    }


def _find_elsewhere(visit: Visit) -> Sequence[Elsewhere]:
    index = visit.console.read_state().job_index.by_project
    return visit.find_elsewhere("projects.jobs.list", lambda one: len(index.list_children(one)), JOBS_PATH)


async def _read_wait_reasons(visit: Visit, jobs: Sequence[Json]) -> Mapping[str, str]:
    """Why jobs wait, by their ids; of those that are next in the queue."""
    queued = [job["jobId"] for job in reversed(jobs) if job.get("state") == JobState.QUEUED]
    reasons = {}
    for job in queued[:_MAX_WAIT_REASONS]:
        progress = await visit.call("pilotlight.jobs.progress", project=visit.project, job=job)
        reasons[job] = progress.get("waitReason", "")
    return reasons


def describe_job(job: Json) -> str:
    """What a job does, in a few words."""
    if "trainingInput" in job:
        given = job["trainingInput"]
        program = given.get("pythonModule") or (given.get("masterConfig") or {}).get("imageUri", "")
        return f"{'Tuning' if 'hyperparameters' in given else 'Training'}: {program}"
    given = job.get("predictionInput", {})
    name = given.get("versionName") or given.get("modelName") or given.get("uri", "")
    return f"Prediction: {name.partition('/models/')[2] or name}"


async def show_job(visit: Visit) -> Response:
    return await _render_job(visit)


async def _render_job(visit: Visit, form: Form | None = None, error: ServingError | None = None) -> Response:
    """`form` has the labels of a change that was refused with `error`."""
    values = await _read_job(visit)
    job, names = values["job"], visit.path_params
    return visit.render(
        "job.html",
        status=200 if error is None else http_status(error),
        error=error,
        field_errors=locate_error(error, ("labels",), {}),
        **values,
        labels=format_labels(job.get("labels", {})) if form is None else form["labels"],
        is_tuning="hyperparameters" in job.get("trainingInput", {}),
        may_update=visit.may("projects.jobs.patch", **names),
        may_see_policy=visit.may("projects.jobs.getIamPolicy", **names),
    )


async def show_job_progress(visit: Visit) -> Response:
    """The state, progress and last log lines of a job, until it has ended."""
    values = await _read_job(visit)
    return visit.render_partial("_job_progress.html", done=values["has_ended"], **values)


async def _read_job(visit: Visit) -> Json:
    job = await visit.call("projects.jobs.get", project=visit.project, job=visit.path_params["job"])
    progress = await visit.call(
        "pilotlight.jobs.progress", project=visit.project, job=visit.path_params["job"]
    )
    has_ended = job.get("state") in FINAL_STATES
    return {
        **visit.path_params,
        "id": visit.path_params["job"],
        "job": job,
        "what": describe_job(job),
        "progress": progress,
        "has_ended": has_ended,
        "seconds": measure_run(job, datetime.datetime.now(datetime.UTC)),
        "may_cancel": not has_ended
        and job.get("state") != JobState.CANCELLING
        and visit.may("projects.jobs.cancel", **visit.path_params),
    }


def measure_run(job: Json, now: datetime.datetime) -> int | None:
    """For how many seconds a job has run, from its start to its end or until `now`; None before its start."""
    if not job.get("startTime"):
        return None
    end = datetime.datetime.fromisoformat(job["endTime"]) if job.get("endTime") else now
    return max(0, round((end - datetime.datetime.fromisoformat(job["startTime"])).total_seconds()))


async def show_log(visit: Visit) -> Response:
    """The whole log, from its beginning, in pages; `severity` is the least that is shown."""
    project, job, severity = (
        visit.path_params["project"],
        visit.path_params["job"],
        visit.query.get("severity", ""),
    )
    conditions = [f'resource.labels.job_id="{job}"', *([f"severity>={severity}"] if severity else [])]
    asked = {
        "resourceNames": [f"projects/{project}"],
        "filter": " AND ".join(conditions),
        "orderBy": "timestamp asc",
        "pageSize": _LOG_PAGE_SIZE,
        "pageToken": visit.query.get("pageToken", ""),
    }
    found = await visit.call("pilotlight.entries.list", body=asked)
    return visit.render(
        "job_log.html",
        id=job,
        entries=found.get("entries", []),
        severity=severity,
        next_token=found.get("nextPageToken", ""),
    )


async def cancel_job(visit: Visit) -> Response:
    path = JOB_PATH.format_map(visit.path_params)
    try:
        await visit.call("projects.jobs.cancel", body={}, project=visit.project, job=visit.path_params["job"])
    except FailedPrecondition:
        job = await visit.call("projects.jobs.get", project=visit.project, job=visit.path_params["job"])
        if job.get("state") not in FINAL_STATES:
            raise
        return visit.redirect(path, notice=f"The job had ended before: {job['state']}.")
    return visit.redirect(path, notice="The job was asked to stop; no result of it is kept.")


async def update_labels(visit: Visit) -> Response:
    form = await visit.read_form()
    try:
        await visit.call(
            "projects.jobs.patch",
            query={"updateMask": "labels"},
            body={"labels": parse_labels(form["labels"]), "etag": form["etag"]},
            project=visit.project,
            job=visit.path_params["job"],
        )
    except REFUSED_TO_VISITOR:
        raise
    except ServingError as error:
        return await _render_job(visit, form, error)
    return visit.redirect(JOB_PATH.format_map(visit.path_params), notice="The labels are changed.")


ROUTES = (
    page(JOBS_PATH, show_jobs),
    page("/projects/{project}/job-list", show_job_list),
    page(JOB_PATH, show_job),
    page(f"{JOB_PATH}/progress", show_job_progress),
    page(f"{JOB_PATH}/log", show_log),
    action(f"{JOB_PATH}/cancel", cancel_job),
    action(f"{JOB_PATH}/labels", update_labels),
)
