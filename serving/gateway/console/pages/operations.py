"""Operations: the list, one with its progress, and cancelling."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from serving.gateway.console.visit import Visit, action, page

Json = dict[str, Any]

OPERATION_PATH = "/projects/{project}/operations/{operation}"
_LIST_PATH = "/projects/{project}/operations"
_PAGE_SIZE = "50"


async def show_operations(visit: Visit) -> Response:
    query = {"pageSize": _PAGE_SIZE, "pageToken": visit.query.get("pageToken", "")}
    found = await visit.call("projects.operations.list", query=query, project=visit.project)
    operations, index = found.get("operations", []), visit.console.read_state().operation_index.by_project
    return visit.render(
        "operations.html",
        rows=[_build_row(one) for one in operations],
        elsewhere=()
        if operations
        else visit.find_elsewhere(
            "projects.operations.list", lambda one: len(index.list_children(one)), _LIST_PATH
        ),
        next_token=found.get("nextPageToken", ""),
    )


async def show_operation(visit: Visit) -> Response:
    return visit.render("operation.html", **await _read_operation(visit))


async def show_operation_progress(visit: Visit) -> Response:
    values = await _read_operation(visit)
    return visit.render_partial("_operation_progress.html", done=values["row"]["done"], **values)


async def cancel_operation(visit: Visit) -> Response:
    await visit.call(
        "projects.operations.cancel", body={}, project=visit.project, operation=visit.path_params["operation"]
    )
    return visit.redirect(
        OPERATION_PATH.format_map(visit.path_params), notice="The operation was asked to stop."
    )


async def _read_operation(visit: Visit) -> Json:
    operation = await visit.call(
        "projects.operations.get", project=visit.project, operation=visit.path_params["operation"]
    )
    row = _build_row(operation)
    return {
        "project": visit.project,
        "row": row,
        "may_cancel": not row["done"] and visit.may("projects.operations.cancel", **visit.path_params),
    }


def _build_row(operation: Json) -> Json:
    metadata = operation.get("metadata", {})
    name = metadata.get("version", {}).get("name", "")
    version = name if "/" in name else f"{metadata.get('modelName', '')}/versions/{name}" if name else ""
    done, error = operation.get("done", False), operation.get("error", {}).get("message", "")
    return {
        "id": operation["name"].rpartition("/")[2],
        "kind": metadata.get("operationType", "").replace("_", " ").lower(),
        "version": version,
        "model": metadata.get("modelName", ""),
        "created": metadata.get("createTime", ""),
        "ended": metadata.get("endTime", ""),
        "phase": metadata.get("phase", ""),
        "warnings": metadata.get("warnings", []),
        "cancelling": metadata.get("isCancellationRequested", False),
        "done": done,
        "error": error,
        "state": "failed" if error else "done" if done else "running",
        "is_creation": metadata.get("operationType") == "CREATE_VERSION",
    }


ROUTES = (
    page(_LIST_PATH, show_operations),
    page(OPERATION_PATH, show_operation),
    page(f"{OPERATION_PATH}/progress", show_operation_progress),
    action(f"{OPERATION_PATH}/cancel", cancel_operation),
)
