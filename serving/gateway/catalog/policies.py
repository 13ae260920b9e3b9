"""Rules for policies. Each works on a draft of the state; see the package."""

from __future__ import annotations

from collections.abc import Iterable

from serving.errors import Aborted, InvalidArgument, NotFound, field_error
from serving.gateway.access.policy import Policy, build_owner_policy, normalize_bindings
from serving.gateway.access.roles import JOB_OWNER, MODEL_OWNER, OPERATION_OWNER
from serving.gateway.catalog.checks import etags_match
from serving.gateway.catalog.jobs import get_job
from serving.gateway.catalog.lookup import get_model
from serving.gateway.state.catalog_state import CatalogState, StateDraft
from serving.gateway.state.records import ChangeStamp, PolicyRecord
from serving.names import ModelName, check_project

# The etag of a resource whose policy was never set; Google's has the same.
_UNSET_ETAG = "ACAB"
_MASK_FIELDS = ("bindings", "etag", "version")

# The role that the creator of a resource gets on it, by collection.
_OWNER_ROLES = {"models": MODEL_OWNER, "jobs": JOB_OWNER, "operations": OPERATION_OWNER}


def get_policy(state: CatalogState | StateDraft, resource: str) -> Policy:
    """Return the policy of a resource, an empty one if none was set. Raises NotFound for no such resource."""
    _check_resource_exists(state, resource)
    record = state.policies.get(resource)
    return record.policy if record else Policy(etag=_UNSET_ETAG)


def set_policy(
    draft: StateDraft, stamp: ChangeStamp, resource: str, given: Policy, mask: Iterable[str] = _MASK_FIELDS
) -> Policy:
    """Replace the policy of a resource, unless somebody else has changed it since `given.etag`."""
    kept = get_policy(draft, resource)
    for path in mask:
        if path not in _MASK_FIELDS:
            raise field_error(
                InvalidArgument,
                "update_mask",
                f"{path!r} cannot be set; choose from {', '.join(_MASK_FIELDS)}.",
            )
    if given.etag and not etags_match(given.etag, kept.etag):
        raise Aborted(
            "There were concurrent policy changes. Please retry the whole read-modify-write with exponential "
            "backoff."
        )
    bindings = normalize_bindings(given) if "bindings" in mask else kept.bindings
    policy = Policy(version=1, bindings=bindings, etag=stamp.etag)
    draft.put(PolicyRecord(name=resource, policy=policy))
    return policy


def update_owner_policies(draft: StateDraft, stamp: ChangeStamp, before: CatalogState) -> None:
    """Make the creator of each new resource its owner; drop policies of deleted resources."""
    principal = stamp.cause.principal if stamp.cause else ""
    for (table, name), record in list(draft.changes.items()):
        if record is None:
            if name in draft.policies:
                draft.delete(draft.policies[name])
        elif principal and table in _OWNER_ROLES and record.name not in getattr(before, table):
            draft.put(
                PolicyRecord(name=name, policy=build_owner_policy(principal, _OWNER_ROLES[table], stamp.etag))
            )


def resource_exists(state: CatalogState, resource: str) -> bool:
    """Whether a resource that can have a policy exists."""
    try:
        _check_resource_exists(state, resource)
    except NotFound:
        return False
    return True


def _check_resource_exists(state: CatalogState | StateDraft, resource: str) -> None:
    match resource.split("/"):
        case ["projects", project]:
            check_project(project)
        case ["projects", project, "models", model]:
            get_model(state, ModelName(project, model))
        case ["projects", _, "jobs", _]:
            get_job(state, resource)
        case _:
            pass  # the server itself
