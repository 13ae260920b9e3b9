"""Rules for versions. Each works on a draft of the state; see the package."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from serving.errors import (
    AlreadyExists,
    Cancelled,
    FailedPrecondition,
    ServingError,
    Unavailable,
    field_error,
    to_rpc_status,
)
from serving.gateway.catalog.checks import (
    UNSPECIFIED_FRAMEWORK,
    check_can_be_default,
    check_etag,
    check_labels,
    check_not_busy,
    check_quota,
    check_request_logging,
    check_scaling,
    check_version,
    update_mask_error,
)
from serving.gateway.catalog.lookup import get_model, get_version, render_version
from serving.gateway.catalog.operations import (
    add_finished_operation,
    begin_operation,
    finish_operation,
    get_operation,
    get_operation_with_version,
    with_metadata,
)
from serving.gateway.state.catalog_state import CatalogState, StateDraft
from serving.gateway.state.records import ChangeStamp, DeploymentInfo, VersionRecord, VersionUsage
from serving.names import ModelName, VersionName, check_id
from serving.resources import (
    AutoScaling,
    ManualScaling,
    Operation,
    RpcStatus,
    Version,
    VersionState,
    format_timestamp,
    resource_to_json,
    to_camel_case,
)


def create_version(
    draft: StateDraft, stamp: ChangeStamp, parent: ModelName, version: Version, *, most: int = 0
) -> Operation:
    """Add a version in state CREATING, and the operation that deploys it.

    The project must have less than `most`, over all its models; 0: any number.
    """
    get_model(draft, parent)
    name = VersionName(parent.project, parent.model, check_id(version.name, "version.name"))
    check_version(version, name)
    if name in draft.versions:
        raise field_error(AlreadyExists, "version.name", "A version with the same name already exists.")
    there = sum(
        len(draft.version_order.list_children(one)) for one in draft.model_order.list_children(parent.project)
    )
    check_quota("max_versions_per_project", most, there, "versions")
    stored = msgspec.structs.replace(
        version,
        name=str(name),
        create_time=format_timestamp(stamp.now),
        deployment_uri=version.deployment_uri.rstrip("/"),
        error_message="",
        etag=stamp.etag,
        framework="" if version.framework == UNSPECIFIED_FRAMEWORK else version.framework,
        is_default=False,
        last_use_time="",
        machine_type=version.machine_type or "mls1-c1-m2",
        # Only a patch can switch request logging on.
        request_logging_config=None,
        state=VersionState.CREATING,
        warnings=(),
    )
    draft.put(VersionRecord(name=name, uid=stamp.token, version=stored))
    return begin_operation(draft, stamp, name, "CREATE_VERSION", stored)


def complete_create(
    draft: StateDraft, stamp: ChangeStamp, operation: str, deployed: DeploymentInfo, warnings: tuple[str, ...]
) -> Operation:
    """Make the version READY; the first one of a model becomes its default."""
    record, version = get_operation_with_version(draft, operation)
    # User code has only the schema that its owner declared.
    of_user = version.version.prediction_class or version.version.container is not None
    framework = version.version.framework if of_user else deployed.framework
    ready = msgspec.structs.replace(
        version.version, state=VersionState.READY, framework=framework, etag=stamp.etag, warnings=warnings
    )
    version = msgspec.structs.replace(version, version=ready, deployed=deployed)
    draft.put(version)
    model = get_model(draft, version.name.parent)
    if not model.default:
        draft.put(msgspec.structs.replace(model, default=version.name.version))
    metadata = msgspec.structs.replace(record.operation.metadata, warnings=warnings, phase="")
    response = ("Version", resource_to_json(render_version(draft, version)))
    return finish_operation(
        draft, stamp, msgspec.structs.replace(record, operation=with_metadata(record, metadata)), response
    )


def with_usage(record: VersionRecord, use: VersionUsage) -> VersionRecord:
    deployed = record.deployed and msgspec.structs.replace(
        record.deployed, memory=use.memory, start_seconds=use.start_seconds
    )
    version = msgspec.structs.replace(record.version, last_use_time=use.last_use_time)
    return msgspec.structs.replace(record, version=version, deployed=deployed)


def record_usage(
    draft: StateDraft, _: ChangeStamp, uses: Mapping[VersionName, tuple[str, VersionUsage]]
) -> None:
    """Store the usage of versions, which are given with their uids."""
    for name, (uid, use) in uses.items():
        record = draft.versions.get(name)
        if record is not None and record.uid == uid:
            draft.put(with_usage(record, use))


def record_start_failure(draft: StateDraft, _: ChangeStamp, name: VersionName, uid: str, reason: str) -> None:
    """Show on a READY version why its nodes cannot be started; "" once one could."""
    record = draft.versions.get(name)
    if record is not None and record.uid == uid and record.version.state is VersionState.READY:
        version = msgspec.structs.replace(record.version, error_message=reason)
        draft.put(msgspec.structs.replace(record, version=version))


def record_schema(draft: StateDraft, _: ChangeStamp, name: VersionName, uid: str, schema: str) -> None:
    """Store the schema of a READY version, as one of its nodes reports it."""
    record = draft.versions.get(name)
    if record is not None and record.uid == uid and record.deployed is not None:
        deployed = msgspec.structs.replace(record.deployed, schema=schema)
        draft.put(msgspec.structs.replace(record, deployed=deployed))


def record_pack(draft: StateDraft, _: ChangeStamp, name: VersionName, uid: str, pack: str) -> None:
    """Store the digest of the pack that a READY version has by now."""
    record = draft.versions.get(name)
    if record is not None and record.uid == uid and record.deployed is not None:
        draft.put(
            msgspec.structs.replace(record, deployed=msgspec.structs.replace(record.deployed, pack=pack))
        )


def fail_create(draft: StateDraft, stamp: ChangeStamp, operation: str, error: ServingError) -> Operation:
    """Make the version FAILED, with the error."""
    known = get_operation(draft, operation).operation
    if known.done:
        return known  # cancelled while its success was being written
    record, version = get_operation_with_version(draft, operation)
    message = error.message
    if isinstance(error, Unavailable):
        message = f"Create Version failed. {message}"  # no fault of the model
    elif not isinstance(error, Cancelled):
        message = f'Create Version failed. Bad model detected with error:  "{message}"'
    status = RpcStatus(code=to_rpc_status(error)["code"], message=message)
    failed = msgspec.structs.replace(
        version.version, state=VersionState.FAILED, error_message=message, etag=stamp.etag
    )
    draft.put(msgspec.structs.replace(version, version=failed))
    return finish_operation(draft, stamp, record, None, status)


def list_version_names(state: CatalogState, parent: ModelName) -> Sequence[VersionName]:
    """The versions of a model, in order."""
    get_model(state, parent)
    return state.version_order.list_children(parent)


def update_version(
    draft: StateDraft, stamp: ChangeStamp, name: VersionName, given: Version, mask: Sequence[str]
) -> Operation:
    """Change the fields in the mask."""
    record = get_version(draft, name)
    check_not_busy(record, "updated")
    check_etag(given.etag, record.version.etag)
    version = record.version
    for path in mask:
        version = _apply_mask_path(version, given, path)
    check_scaling(version)
    record = msgspec.structs.replace(record, version=msgspec.structs.replace(version, etag=stamp.etag))
    draft.put(record)
    response = ("Version", resource_to_json(render_version(draft, record)))
    return add_finished_operation(draft, stamp, name, "UPDATE_VERSION", response)


def set_default(draft: StateDraft, stamp: ChangeStamp, name: VersionName) -> Version:
    """Make this the version that answers predictions addressed to the model."""
    record = get_version(draft, name)
    model = get_model(draft, name.parent)
    fresh = msgspec.structs.replace(model.model, etag=stamp.etag)
    draft.put(msgspec.structs.replace(model, model=fresh, default=check_can_be_default(record)))
    return render_version(draft, record)


def delete_version(draft: StateDraft, stamp: ChangeStamp, name: VersionName) -> Operation:
    """Put a version into state DELETING, and begin the operation that removes it."""
    record = get_version(draft, name)
    check_not_busy(record, "deleted")
    model = get_model(draft, name.parent)
    if model.default == name.version:
        if len(draft.version_order.list_children(name.parent)) > 1:
            raise field_error(
                FailedPrecondition,
                "name",
                f"Cannot delete the default version {name.version} of the model {name.model} while it has "
                "other versions. Make another version the default first.",
            )
        draft.put(msgspec.structs.replace(model, default=""))
    deleting = msgspec.structs.replace(record.version, state=VersionState.DELETING, etag=stamp.etag)
    draft.put(msgspec.structs.replace(record, version=deleting))
    return begin_operation(draft, stamp, name, "DELETE_VERSION", record.version)


def finish_delete(draft: StateDraft, stamp: ChangeStamp, operation: str) -> Operation:
    """Remove the version, once its nodes and files are gone."""
    record, version = get_operation_with_version(draft, operation)
    draft.delete(version)
    return finish_operation(draft, stamp, record, None)


_UPDATABLE_PATHS = (
    "description",
    "labels",
    "requestLoggingConfig",
    "autoScaling",
    "autoScaling.minNodes",
    "autoScaling.maxNodes",
    "autoScaling.metrics",
    "manualScaling",
    "manualScaling.nodes",
)


def _apply_mask_path(version: Version, given: Version, path: str) -> Version:
    """Take the field of one path of an update mask from `given`."""
    outer, _, inner = to_camel_case(path).partition(".")
    if outer == "requestLoggingConfig":
        inner = ""  # its parts make no sense alone
    elif to_camel_case(path) not in _UPDATABLE_PATHS:
        raise update_mask_error(path, _UPDATABLE_PATHS)
    name = _to_snake_case(outer)
    value: Any = getattr(given, name)
    if inner:
        empty: dict[str, Any] = {"auto_scaling": AutoScaling(), "manual_scaling": ManualScaling()}
        part = _to_snake_case(inner)
        changed = {part: getattr(value if value is not None else empty[name], part)}
        value = msgspec.structs.replace(getattr(version, name) or empty[name], **changed)
    if name == "labels":
        check_labels(value)
    if name == "request_logging_config":
        check_request_logging(value)
    # Setting one kind of scaling removes the other.
    other = {"auto_scaling": "manual_scaling", "manual_scaling": "auto_scaling"}.get(name)
    changes = {name: value} | ({other: None} if other and value is not None else {})
    return msgspec.structs.replace(version, **changes)


def _to_snake_case(name: str) -> str:
    return re.sub(r"[A-Z]", lambda match: f"_{match[0].lower()}", name)
