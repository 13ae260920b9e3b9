"""Submits batch predictions by form."""

from __future__ import annotations

import time

from starlette.responses import Response

from serving.errors import ServingError, http_status
from serving.gateway.console.field_parsers import drop_empty, parse_labels, split_lines
from serving.gateway.console.forms import EMPTY_FORM, Form
from serving.gateway.console.pages.jobs import JOB_PATH
from serving.gateway.console.visit import Visit, action, page

_PATH = "/projects/{project}/new-prediction-job"
_FORMATS = ("JSON", "TEXT", "TF_RECORD", "TF_RECORD_GZIP")
_DEFAULT_REGION = "us-central1"


async def show_form(visit: Visit) -> Response:
    visit.require("projects.jobs.create", project=visit.project)
    return await _render_form(visit, EMPTY_FORM, None)


async def submit_job(visit: Visit) -> Response:
    form, project = await visit.read_form(), visit.path["project"]
    try:
        body = _build_job(project, form)
        await visit.call("projects.jobs.create", body=body, project=project)
    except ServingError as error:
        return await _render_form(visit, form, error)
    return visit.redirect(JOB_PATH.format(project=project, job=form["job"]), notice="The job was submitted.")


async def _render_form(visit: Visit, form: Form, error: ServingError | None) -> Response:
    project = visit.path["project"]
    return visit.render(
        "prediction_job_form.html",
        status=200 if error is None else http_status(error),
        project=project,
        error=error,
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
