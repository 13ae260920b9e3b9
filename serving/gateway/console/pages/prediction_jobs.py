"""Submits batch predictions by form."""

from __future__ import annotations

import time

from starlette.responses import Response

from serving.errors import ServingError, http_status
from serving.gateway.console.field_parsers import (
    drop_empty,
    locate_error,
    parse_labels,
    replace_line,
    split_lines,
)
from serving.gateway.console.forms import EMPTY_FORM, Form
from serving.gateway.console.pages.jobs import JOB_PATH
from serving.gateway.console.visit import Visit, action, page
from serving.gateway.control.file_check import MissingInput

_PATH = "/projects/{project}/new-prediction-job"
_FORMATS = ("JSON", "TEXT", "TF_RECORD", "TF_RECORD_GZIP")
_DEFAULT_REGION = "us-central1"
# The fields of the form, and those that the API calls otherwise.
_FIRST_FIELDS = frozenset({"job", "target", "input_paths", "output_path", "data_format"})
_FIELDS = frozenset(
    {*_FIRST_FIELDS, "output_data_format", "keys", "max_errors", "max_worker_count", "batch_size"}
    | {"signature_name", "region", "labels"}
)
_API_NAMES = {"job_id": "job", "model_name": "target", "version_name": "target", "uri": "target"}


async def show_form(visit: Visit) -> Response:
    visit.require("projects.jobs.create", project=visit.project)
    return await _render_form(visit, EMPTY_FORM)


async def submit_job(visit: Visit) -> Response:
    """Nothing is created while the input does not exist."""
    form, project = await visit.read_form(), visit.path_params["project"]
    visit.require("projects.jobs.create", project=project)
    if form["replacement"]:
        return await _render_form(visit, form.replace(input_paths=form["replacement"]))
    try:
        body = _build_job(project, form)
        missing = await visit.console.input_checker.find_missing(split_lines(form["input_paths"]))
        if missing.message:
            return await _render_form(visit, form, missing=missing)
        await visit.call("projects.jobs.create", body=body, project=project)
    except ServingError as error:
        return await _render_form(visit, form, error=error)
    return visit.redirect(JOB_PATH.format(project=project, job=form["job"]), notice="The job was submitted.")


async def _render_form(
    visit: Visit, form: Form, *, error: ServingError | None = None, missing: MissingInput | None = None
) -> Response:
    project = visit.path_params["project"]
    field_errors = locate_error(error, _FIELDS, _API_NAMES)
    replacement = ""
    if missing is not None:
        field_errors = {"input_paths": missing.message}
        replacement = replace_line(form["input_paths"], missing.pattern, missing.suggestion)
    return visit.render(
        "prediction_job_form.html",
        status=200 if error is None else http_status(error),
        project=project,
        error=error,
        field_errors=field_errors,
        is_more_wrong=not field_errors.keys() <= _FIRST_FIELDS,
        replacement=replacement,
        suggestion="" if missing is None else missing.suggestion,
        form=form,
        job_id=form["job"] or f"prediction_{time.strftime('%Y%m%d_%H%M%S', time.gmtime())}",
        target=form["target"] or visit.query.get("target", ""),
        targets=await _list_targets(visit, project),
        formats=[(one, one) for one in _FORMATS],
    )


async def _list_targets(visit: Visit, project: str) -> list[str]:
    """The models that the visitor may see, as suggestions."""
    if not visit.may("projects.models.list", project=project):
        return []
    found = await visit.call("projects.models.list", project=project)
    return [model["name"].partition("/models/")[2] for model in found.get("models", [])]


def _build_job(project: str, form: Form) -> dict[str, object]:
    """`target` is MODEL, MODEL/VERSION, or a folder: a path or gs://."""
    target = form["target"]
    model, mark, version = target.partition("/")
    if ":" in target or target.startswith("/"):
        source = {"uri": target}
    elif mark:
        source = {"versionName": f"projects/{project}/models/{model}/versions/{version}"}
    else:
        source = {"modelName": f"projects/{project}/models/{model}"}
    given = {
        **source,
        "inputPaths": split_lines(form["input_paths"]),
        "outputPath": form["output_path"],
        "dataFormat": form["data_format"],
        "region": form["region"] or _DEFAULT_REGION,
        **drop_empty(
            maxWorkerCount=form["max_worker_count"],
            batchSize=form["batch_size"],
            outputDataFormat=form["output_data_format"],
            signatureName=form["signature_name"],
        ),
    }
    options = drop_empty(
        maxErrors=form["max_errors"], keys=[key.strip() for key in form["keys"].split(",") if key.strip()]
    )
    return {
        "jobId": form["job"],
        "predictionInput": given,
        **drop_empty(batchOptions=options, labels=parse_labels(form["labels"])),
    }


ROUTES = (page(_PATH, show_form), action(_PATH, submit_job))
