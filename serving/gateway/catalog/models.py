"""Rules for models. Each works on a draft of the state; see the package."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from serving.errors import AlreadyExists, FailedPrecondition, InvalidArgument, field_error
from serving.gateway.catalog.checks import (
    check_can_be_default,
    check_etag,
    check_labels,
    check_quota,
    update_mask_error,
)
from serving.gateway.catalog.lookup import get_model, get_version, render_model
from serving.gateway.catalog.operations import add_finished_operation
from serving.gateway.state.catalog_state import CatalogState, StateDraft
from serving.gateway.state.records import ChangeStamp, ModelRecord
from serving.names import ModelName, VersionName, check_id, check_project
from serving.resources import Model, Operation, resource_to_json, to_camel_case


def create_model(
    draft: StateDraft, stamp: ChangeStamp, project: str, model: Model, *, most: int = 0
) -> Model:
    """Add a model, if the project has less than `most`; 0: any number."""
    check_project(project)
    name = ModelName(project, check_id(model.name, "model.name"))
    check_labels(model.labels)
    if len(model.regions) > 1:
        raise field_error(InvalidArgument, "model.regions", "At most one region can be given.")
    if name in draft.models:
        raise field_error(AlreadyExists, "model.name", "A model with the same name already exists.")
    check_quota("max_models_per_project", most, len(draft.model_order.list_children(project)), "models")
    stored = msgspec.structs.replace(
        model,
        name=str(name),
        etag=stamp.etag,
        default_version=None,
        regions=model.regions or ("us-central1",),
    )
    record = ModelRecord(name=name, model=stored)
    draft.put(record)
    return render_model(draft, record)


def list_model_names(state: CatalogState, project: str) -> Sequence[ModelName]:
    """The models of a project, in order."""
    return state.model_order.list_children(check_project(project))


def update_model(
    draft: StateDraft, stamp: ChangeStamp, name: ModelName, given: Model, mask: Sequence[str]
) -> Operation:
    """Change the fields in the mask: description, labels, defaultVersion.name."""
    record = get_model(draft, name)
    check_etag(given.etag, record.model.etag)
    model, default = record.model, record.default
    for path in mask:
        match to_camel_case(path):
            case "description":
                model = msgspec.structs.replace(model, description=given.description)
            case "labels":
                check_labels(given.labels)
                model = msgspec.structs.replace(model, labels=given.labels)
            case "defaultVersion.name":
                wanted = given.default_version.name if given.default_version else ""
                bare = wanted.removeprefix(f"{name}/versions/")
                version = get_version(draft, VersionName(name.project, name.model, bare))
                default = check_can_be_default(version)
            case _:
                raise update_mask_error(path, ("description", "labels", "default_version.name"))
    record = ModelRecord(name=name, model=msgspec.structs.replace(model, etag=stamp.etag), default=default)
    draft.put(record)
    return add_finished_operation(
        draft, stamp, name, "UPDATE_MODEL", ("Model", resource_to_json(render_model(draft, record)))
    )


def delete_model(draft: StateDraft, stamp: ChangeStamp, name: ModelName) -> Operation:
    """Remove a model that has no versions."""
    record = get_model(draft, name)
    if draft.version_order.list_children(name):
        raise field_error(
            FailedPrecondition,
            "name",
            f"Cannot delete the model {name.model} because it has versions. Delete its versions first.",
        )
    draft.delete(record)
    return add_finished_operation(draft, stamp, name, "DELETE_MODEL", None)
