"""Finds resources, and renders them for responses."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from serving.errors import FailedPrecondition, NotFound
from serving.gateway.state.catalog_state import CatalogState, StateDraft
from serving.gateway.state.records import ModelRecord, VersionRecord
from serving.names import ModelName, VersionName
from serving.protocols.addresses import ModelAddress, choose_version, unknown_model_error
from serving.resources import Model, Version, VersionState


def get_model(state: CatalogState | StateDraft, name: ModelName) -> ModelRecord:
    """Raises NotFound with a hint how to create it."""
    if name not in state.models:
        raise NotFound(
            f'Field: name Error: The model resource: "{name}" was not found. Please create the model first, '
            f"e.g. by `pilotlight models create {name.model}`.",
            field="name",
        )
    return state.models[name]


def get_version(state: CatalogState | StateDraft, name: VersionName) -> VersionRecord:
    """Raises NotFound for the version or its model."""
    if name not in state.versions:
        get_model(state, name.parent)
        raise NotFound(f'Field: name Error: The version resource: "{name}" was not found.', field="name")
    return state.versions[name]


def resolve_version(state: CatalogState | StateDraft, target: ModelName | VersionName) -> VersionRecord:
    """Return the version that answers predictions for this name. Raises NotFound or FailedPrecondition."""
    if isinstance(target, VersionName):
        record = get_version(state, target)
    else:
        model = get_model(state, target)
        if not model.default:
            raise FailedPrecondition(
                f"The model {target} has no default version yet. Create a version, or name one in the "
                "request."
            )
        record = state.versions[VersionName(target.project, target.model, model.default)]
    if record.version.state is not VersionState.READY:
        raise FailedPrecondition(
            f"The version {record.name} is not ready: it is {record.version.state}."
            + (f" {record.version.error_message}" if record.version.error_message else "")
        )
    return record


def resolve_address(state: CatalogState, asked: ModelAddress) -> VersionRecord:
    """Return the version that a name of another protocol means; see `serving.protocols.addresses`."""
    return resolve_version(state, address_to_name(state, asked))


def address_to_name(state: CatalogState, asked: ModelAddress) -> ModelName | VersionName:
    """Convert a name of another protocol to ours: a model, or an existing version. Raises NotFound."""
    model = asked.model
    if model not in state.models:
        raise unknown_model_error(asked)
    if not asked.version and not asked.label:
        return model
    exact = VersionName(model.project, model.model, asked.version)
    if exact in state.versions and not asked.label:
        return exact
    below = {
        name.version: state.versions[name].version.labels for name in state.version_order.list_children(model)
    }
    return VersionName(model.project, model.model, choose_version(asked, below))


def render_model(
    state: CatalogState | StateDraft,
    record: ModelRecord,
    with_fresh_usage: Callable[[VersionRecord], VersionRecord] = lambda record: record,
) -> Model:
    """Render a model with its default version, to which `with_fresh_usage` adds what is not stored."""
    if not record.default:
        return record.model
    default = state.versions[VersionName(record.name.project, record.name.model, record.default)]
    return msgspec.structs.replace(
        record.model, default_version=render_version(state, with_fresh_usage(default))
    )


def render_version(state: CatalogState | StateDraft, record: VersionRecord) -> Version:
    model = state.models.get(record.name.parent)
    is_default = model is not None and model.default == record.name.version
    return msgspec.structs.replace(record.version, is_default=is_default)
