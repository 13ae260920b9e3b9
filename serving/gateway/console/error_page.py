"""What a page says instead of what was asked for: in plain words, with the ways back and what was typed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from serving.errors import NotFound, ServingError
from serving.gateway.console.forms import ANTI_FORGERY_FIELD, Form
from serving.names import ModelName, VersionName

if TYPE_CHECKING:
    from serving.gateway.console.visit import Visit

_HEADINGS: Final[Mapping[str, str]] = {
    "NOT_FOUND": "There is nothing here",
    "PERMISSION_DENIED": "You may not do this",
    "UNAUTHENTICATED": "You are not signed in",
    "UNAVAILABLE": "Not now",
    "INTERNAL": "The server has a fault",
}
_MAX_OTHERS: Final = 20
# Fields that nobody typed, and those that must not be shown.
_UNSHOWN: Final = frozenset({ANTI_FORGERY_FIELD, "etag", "token", "next", "step"})
_FILE_PREFIX: Final = "file-"

Link = tuple[str, str]


def describe_error(visit: Visit, error: ServingError, form: Form | None) -> dict[str, Any]:
    """The values of the template; `form` is what was sent with a change that was refused."""
    _, _, said = error.message.partition(" Error: ")
    message = said or error.message
    plain = _describe_missing(visit) if isinstance(error, NotFound) else ""
    return {
        "heading": _HEADINGS.get(error.status, "This did not work"),
        "message": plain or message,
        "details": message if plain else "",
        "ways": list(_iter_ways_back(visit)),
        "others": list(itertools.islice(_iter_others(visit), _MAX_OTHERS)) if plain else [],
        "typed": _list_entered_values(form),
    }


def _describe_missing(visit: Visit) -> str:
    """What of the address is not there, or may not be seen; "" for an address of another kind."""
    names, project = visit.path_params, visit.project
    if "version" in names and _may_see_model(visit):
        return f"The model {names['model']} has no version {names['version']}."
    for kind in ("model", "job", "operation"):
        if kind in names:
            return f"There is no {kind} {names[kind]} in the project {project}."
    return ""


def _iter_ways_back(visit: Visit) -> Iterator[Link]:
    """Pages above the address that the visitor may see, the nearest first."""
    names, project, state = visit.path_params, visit.project, visit.console.read_state()
    base = f"/projects/{project}"
    if "job" in names:
        name = f"projects/{project}/jobs/{names['job']}"
        if name in state.jobs and visit.may("projects.jobs.get", **names):
            yield f"The job {names['job']}", f"{base}/jobs/{names['job']}"
        if visit.may("projects.jobs.list", project=project):
            yield f"Jobs of the project {project}", f"{base}/jobs"
    if "operation" in names and visit.may("projects.operations.list", project=project):
        yield f"Operations of the project {project}", f"{base}/operations"
    if "model" in names and _may_see_model(visit):
        model = ModelName(project, names["model"])
        version = VersionName(project, names["model"], names.get("version", ""))
        if version in state.versions and visit.may("projects.models.versions.get", **names):
            yield f"The version {version.model} / {version.version}", f"/{version}"
        yield f"The model {model.model}", f"/{model}"
    yield "Overview", "/"


def _iter_others(visit: Visit) -> Iterator[Link]:
    """What there is in place of a model or version that is not there."""
    state, project, model = visit.console.read_state(), visit.project, visit.path_params.get("model", "")
    if "version" in visit.path_params and _may_see_model(visit):
        for name in state.version_order.list_children(ModelName(project, model)):
            if visit.may("projects.models.versions.get", **{**visit.path_params, "version": name.version}):
                yield f"{name.model} / {name.version}", f"/{name}"
    elif model:
        for one in state.model_order.list_children(project):
            if visit.may("projects.models.get", project=project, model=one.model):
                yield one.model, f"/{one}"


def _may_see_model(visit: Visit) -> bool:
    project, model = visit.project, visit.path_params["model"]
    is_there = ModelName(project, model) in visit.console.read_state().models
    return is_there and visit.may("projects.models.get", project=project, model=model)


def _list_entered_values(form: Form | None) -> Sequence[tuple[str, str]]:
    if form is None:
        return []
    return [
        (name.replace("_", " "), value)
        for name, value in form.items()
        if value and name not in _UNSHOWN and not name.startswith(_FILE_PREFIX)
    ]
