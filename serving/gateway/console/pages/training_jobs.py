"""Submits training jobs by form, and draws the metrics of those that run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from serving.errors import ServingError, http_status
from serving.gateway.console.charts.line_charts import LineChart, Points, draw_chart
from serving.gateway.console.field_parsers import (
    drop_empty,
    locate_error,
    parse_json_object,
    parse_labels,
    replace_line,
    split_lines,
)
from serving.gateway.console.forms import EMPTY_FORM, Form
from serving.gateway.console.pages.jobs import FINAL_STATES, JOB_PATH
from serving.gateway.console.visit import Visit, action, page
from serving.gateway.control.file_check import MissingInput
from serving.names import StudyName

Json = dict[str, Any]

_PATH = "/projects/{project}/new-training-job"
_TIERS = ("BASIC", "STANDARD_1", "PREMIUM_1", "BASIC_GPU", "BASIC_TPU", "CUSTOM")
_DEFAULT_REGION = "us-central1"
_FIELDS = frozenset(
    {
        "job",
        "package_uris",
        "python_module",
        "args",
        "job_dir",
        "runtime_version",
        "scale_tier",
        "worker_count",
        "parameter_server_count",
        "evaluator_count",
        "master_type",
        "hyperparameters",
        "deploy_model",
        "deploy_version",
        "region",
        "labels",
    }
)
_MORE_FIELDS = frozenset({"hyperparameters", "deploy_model", "deploy_version", "region", "labels"})
_RENAMED = {
    "job_id": "job",
    "deploy": "deploy_model",
    "worker_type": "master_type",
    "parameter_server_type": "master_type",
    "evaluator_type": "master_type",
}
_MAX_CHARTS = 12
_MAX_LINES = 30


async def show_form(visit: Visit) -> Response:
    visit.require("projects.jobs.create", project=visit.project)
    return _render_form(visit, EMPTY_FORM)


async def submit_job(visit: Visit) -> Response:
    """Nothing is created while a package does not exist."""
    form, project = await visit.read_form(), visit.path_params["project"]
    visit.require("projects.jobs.create", project=project)
    if form["replacement"]:
        return _render_form(visit, form.replace(package_uris=form["replacement"]))
    try:
        job = _build_job(form)
        packages = split_lines(form["package_uris"])
        missing = await visit.console.input_checker.find_missing(packages, takes_stars=False)
        if missing.message:
            return _render_form(visit, form, missing=missing)
        await visit.call("projects.jobs.create", body=job, project=project)
    except ServingError as error:
        return _render_form(visit, form, error=error)
    return visit.redirect(JOB_PATH.format(project=project, job=form["job"]), notice="The job was submitted.")


def _render_form(
    visit: Visit, form: Form, *, error: ServingError | None = None, missing: MissingInput | None = None
) -> Response:
    field_errors = locate_error(error, _FIELDS, _RENAMED)
    replacement = ""
    if missing is not None:
        field_errors = {"package_uris": missing.message}
        replacement = replace_line(form["package_uris"], missing.pattern, missing.suggestion)
    return visit.render(
        "training_job_form.html",
        status=200 if error is None else http_status(error),
        error=error,
        field_errors=field_errors,
        is_more_wrong=bool(field_errors.keys() & _MORE_FIELDS),
        replacement=replacement,
        suggestion="" if missing is None else missing.suggestion,
        form=form,
        job_id=form["job"] or f"training_{time.strftime('%Y%m%d_%H%M%S', time.gmtime())}",
        tiers=[(one, one) for one in _TIERS],
    )


def _build_job(form: Form) -> Json:
    """Raises InvalidArgument."""
    machine = form["master_type"]
    counts = {name: form[f"{name}_count"] for name in ("worker", "parameter_server", "evaluator")}
    given = {
        "region": form["region"] or _DEFAULT_REGION,
        **drop_empty(
            packageUris=split_lines(form["package_uris"]),
            pythonModule=form["python_module"],
            args=split_lines(form["args"]),
            jobDir=form["job_dir"],
            runtimeVersion=form["runtime_version"],
            scaleTier=form["scale_tier"],
            workerCount=counts["worker"],
            parameterServerCount=counts["parameter_server"],
            evaluatorCount=counts["evaluator"],
            masterType=machine,
            workerType=machine if counts["worker"] else "",
            parameterServerType=machine if counts["parameter_server"] else "",
            evaluatorType=machine if counts["evaluator"] else "",
            hyperparameters=parse_json_object(form["hyperparameters"], "hyperparameters"),
        ),
    }
    options = drop_empty(deploy=drop_empty(model=form["deploy_model"], version=form["deploy_version"]))
    return {
        "jobId": form["job"],
        "trainingInput": given,
        **drop_empty(labels=parse_labels(form["labels"]), trainingOptions=options),
    }


async def show_curves(visit: Visit) -> Response:
    """The metrics of a training job, a chart for each, until it has ended."""
    project, job_id = visit.path_params["project"], visit.path_params["job"]
    job = await visit.call("projects.jobs.get", project=project, job=job_id)
    return visit.render_partial(
        "_metric_curves.html",
        done=job.get("state") in FINAL_STATES,
        project=project,
        id=job_id,
        charts=await _draw_charts(visit, job),
    )


async def _draw_charts(visit: Visit, job: Json) -> list[LineChart]:
    """Of trials, the metric that is tuned; of other jobs, what event files in the job's folder have."""
    given = job.get("trainingInput", {})
    if "hyperparameters" in given:
        return _draw_trials(visit, job)
    record = visit.console.read_state().jobs.get(f"projects/{visit.project}/jobs/{job['jobId']}")
    curves = {} if record is None else await visit.console.read_curves(record)
    return [
        _draw_curves(tag, dict(list(lines.items())[:_MAX_LINES]))
        for tag, lines in sorted(curves.items())[:_MAX_CHARTS]
    ]


def _draw_trials(visit: Visit, job: Json) -> list[LineChart]:
    """What the best trials have measured on their way and at their end."""
    study = StudyName(visit.project, job["trainingInput"]["region"], job["jobId"])
    snapshot = visit.console.read_state().studies.get(study)
    if snapshot is None:
        return []
    metric = snapshot.record.study.metrics[0].name
    lines: dict[str, Points] = {}
    for rendered in job.get("trainingOutput", {}).get("trials", [])[:_MAX_LINES]:
        trial = snapshot.find_trial(int(rendered["trialId"]))
        if trial is not None:
            measured = [*trial.measurements, *filter(None, [trial.final])]
            points = {float(one.step): one.values[metric] for one in measured if metric in one.values}
            lines[f"trial {trial.number}"] = list(points.items())
    return [_draw_curves(metric, lines)] if any(lines.values()) else []


def _draw_curves(title: str, lines: Mapping[str, Points]) -> LineChart:
    return draw_chart(title, lines, format_across=lambda step: f"step {step:.6g}", parts_across=1)


ROUTES = (page(_PATH, show_form), action(_PATH, submit_job), page(f"{JOB_PATH}/curves", show_curves))
