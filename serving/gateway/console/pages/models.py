"""One model: its versions and which of them is the default, its labels, and its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response

from serving.errors import ServingError, http_status
from serving.gateway.console.field_parsers import (
    fill_description_and_labels,
    locate_error,
    parse_description_and_labels,
)
from serving.gateway.console.forms import Form
from serving.gateway.console.pages.overview import list_rows
from serving.gateway.console.visit import REFUSED_TO_VISITOR, Visit, action, page
from serving.names import ModelName

Json = dict[str, Any]

MODEL_PATH: Final = "/projects/{project}/models/{model}"


async def show_model(visit: Visit) -> Response:
    return await _render_page(visit)


async def _render_page(visit: Visit, form: Form | None = None, error: ServingError | None = None) -> Response:
    """`form` is a change that was refused with `error`; it keeps what was typed."""
    model, names = await _read_model(visit), visit.path_params
    return visit.render(
        "model.html",
        status=200 if error is None else http_status(error),
        error=error,
        field_errors=locate_error(error, ("description", "labels"), {}),
        **_list_versions(visit),
        details={name: value for name, value in model.items() if name != "defaultVersion"},
        texts=fill_description_and_labels(model, form),
        may_update=visit.may("projects.models.patch", **names),
        may_delete=visit.may("projects.models.delete", **names),
        may_deploy=visit.may("projects.models.versions.create", **names),
    )


async def show_versions(visit: Visit) -> Response:
    """The table of versions, which the page fetches again."""
    await _read_model(visit)
    return visit.render_partial("_model_versions.html", **_list_versions(visit))


async def set_default(visit: Visit) -> Response:
    version = (await visit.read_form())["version"]
    await _call(visit, "projects.models.versions.setDefault", body={}, version=version)
    return visit.redirect(
        MODEL_PATH.format_map(visit.path_params), notice=f"{version} is the default version."
    )


async def update_model(visit: Visit) -> Response:
    form = await visit.read_form()
    try:
        await _call(
            visit,
            "projects.models.patch",
            query={"updateMask": "description,labels"},
            body=parse_description_and_labels(form),
        )
    except REFUSED_TO_VISITOR:
        raise
    except ServingError as error:
        return await _render_page(visit, form, error)
    return visit.redirect(MODEL_PATH.format_map(visit.path_params), notice="The model is changed.")


async def delete_model(visit: Visit) -> Response:
    await _call(visit, "projects.models.delete")
    return visit.redirect("/", notice=f"The model {visit.path_params['model']} is deleted.")


async def _call(
    visit: Visit,
    method: str,
    *,
    query: Mapping[str, str] | None = None,
    body: Json | None = None,
    **more: str,
) -> Any:
    """A method of the page's model."""
    return await visit.call(
        method,
        query=query,
        body=body,
        project=visit.path_params["project"],
        model=visit.path_params["model"],
        **more,
    )


async def _read_model(visit: Visit) -> Json:
    """Raises NotFound and PermissionDenied."""
    model: Json = await _call(visit, "projects.models.get")
    return model


def _list_versions(visit: Visit) -> Json:
    project, model = visit.path_params["project"], visit.path_params["model"]
    names = visit.console.read_state().version_order.list_children(ModelName(project, model))
    return {
        "project": project,
        "model": model,
        "path": MODEL_PATH.format_map(visit.path_params),
        "rows": list(list_rows(visit, names)),
        "may_set_default": visit.may("projects.models.patch", project=project, model=model),
    }


ROUTES = (
    page(MODEL_PATH, show_model),
    page(f"{MODEL_PATH}/version-list", show_versions),
    action(f"{MODEL_PATH}/default", set_default),
    action(f"{MODEL_PATH}/settings", update_model),
    action(f"{MODEL_PATH}/deletion", delete_model),
)
