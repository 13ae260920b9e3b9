"""Deploys a model by form: what its files are is said before anything is created."""

from __future__ import annotations

from starlette.responses import Response

from serving.errors import (
    AlreadyExists,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ServingError,
    http_status,
)
from serving.frameworks import load_frameworks
from serving.gateway.console.field_parsers import drop_empty, locate_error, parse_labels, split_lines
from serving.gateway.console.forms import EMPTY_FORM, Form
from serving.gateway.console.pages.operations import OPERATION_PATH
from serving.gateway.console.visit import Visit, action, page
from serving.gateway.control.file_check import FileFindings
from serving.names import VersionName, check_id
from serving.resources import Version, resource_from_json

_PATH = "/projects/{project}/deploy"
# The fields of the form, and those that the API calls otherwise.
_FIRST_FIELDS = frozenset({"model", "version", "folder"})
_FIELDS = frozenset(
    {*_FIRST_FIELDS, "framework", "prediction_class", "packages", "runtime_version"}
    | {"description", "labels"}
)
_API_NAMES = {"name": "version", "deployment_uri": "folder", "package_uris": "packages"}


async def show_form(visit: Visit) -> Response:
    if not visit.may_on_a_model("projects.models.versions.create", visit.project):
        visit.require("projects.models.create", project=visit.project)
    return await _render_form(visit, EMPTY_FORM)


async def check_or_deploy(visit: Visit) -> Response:
    """The button decides; what cannot be deployed is not created."""
    form = await visit.read_form()
    try:
        version = _build_version(form)
        _check_permission(visit, form["model"])
        _check_names(visit, form)
        findings = await visit.console.inspect_files(resource_from_json(Version, version))
        if form["step"] != "create" or (findings is not None and findings.message):
            return await _render_form(visit, form, findings=findings, is_checked=True)
        operation = await _create_version(visit, form["model"], version)
    except ServingError as error:
        return await _render_form(visit, form, error=error)
    path = OPERATION_PATH.format(project=visit.project, operation=operation)
    return visit.redirect(path, notice="The creation of the version was begun.")


def _check_permission(visit: Visit, model: str) -> None:
    """Raise PermissionDenied: the check of files says what a folder holds."""
    if not visit.may("projects.models.versions.create", project=visit.project, model=model):
        raise PermissionDenied(f"You may not create versions of the model {model}.")


def _check_names(visit: Visit, form: Form) -> None:
    """Raise InvalidArgument or AlreadyExists, before anything is created or looked at."""
    model, version = check_id(form["model"], "model"), check_id(form["version"], "version")
    if VersionName(visit.project, model, version) in visit.console.read_state().versions:
        raise AlreadyExists(
            f"The model {model} has a version {version} already: choose another name.", field="version"
        )
    if not form["folder"]:
        raise InvalidArgument("Name the folder that holds the model's files.", field="folder")


async def _create_version(visit: Visit, model: str, version: dict[str, object]) -> str:
    """Create the model if it does not exist; returns the id of the operation."""
    try:
        await visit.call("projects.models.get", project=visit.project, model=model)
    except NotFound:
        await visit.call("projects.models.create", body={"name": model}, project=visit.project)
    created = await visit.call(
        "projects.models.versions.create", body=version, project=visit.project, model=model
    )
    return str(created["name"].rpartition("/")[2])


def _build_version(form: Form) -> dict[str, object]:
    return {
        "name": form["version"],
        "deploymentUri": form["folder"],
        **drop_empty(
            framework=form["framework"],
            predictionClass=form["prediction_class"],
            packageUris=split_lines(form["packages"]),
            runtimeVersion=form["runtime_version"],
            description=form["description"],
            labels=parse_labels(form["labels"]),
        ),
    }


async def _render_form(
    visit: Visit,
    form: Form,
    *,
    findings: FileFindings | None = None,
    is_checked: bool = False,
    error: ServingError | None = None,
) -> Response:
    # `version.deployment_uri` is no error of the field "version".
    field_errors = locate_error(error, _FIELDS, _API_NAMES, prefix="version")
    if findings is not None and findings.message:
        field_errors = {"folder": findings.message}
    names = [one.name for one in load_frameworks().values() if one.model_files]
    return visit.render(
        "deploy.html",
        status=200 if error is None else http_status(error),
        form=form,
        model=form["model"] or visit.query.get("model", ""),
        folder=form["folder"] or visit.query.get("folder", ""),
        runtime_version=form["runtime_version"] or visit.query.get("runtime_version", ""),
        frameworks=[("", "as the files say"), *((name, name) for name in names)],
        findings=findings,
        is_checked=is_checked,
        error=error,
        field_errors=field_errors,
        is_more_wrong=not field_errors.keys() <= _FIRST_FIELDS,
    )


ROUTES = (page(_PATH, show_form), action(_PATH, check_or_deploy))
