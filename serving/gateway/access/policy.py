"""IAM policies: who has which role on a resource, and the permissions that follow.

A role on a resource holds for everything below it: on a model for its versions, on a project for its models,
jobs and operations, on the server for all projects.
Source: section 7.3 of the AI Platform contract.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from serving.errors import InvalidArgument, field_error
from serving.gateway.access.roles import PERMISSIONS, PUBLIC_ROLES, ROLES
from serving.gateway.methods import SERVER
from serving.gateway.request_context import ANONYMOUS_CALLER, Caller
from serving.resources import Resource

# Who can write the state folder can always make a token for it, and owns everything, whatever policies say.
ADMIN = Caller("user:admin@localhost")

_ALL_USERS, _ALL_AUTHENTICATED_USERS = "allUsers", "allAuthenticatedUsers"
_PRINCIPAL_FORMAT = re.compile(r"(user|serviceAccount):[^\s:@,]+@[^\s:@,]+")
_MAX_MEMBERS = 1500
_POLICY_VERSIONS = (0, 1, 3)
# Parts of a name: no deeper resource has a policy, or an ancestor with one but the server.
_MAX_NAME_PARTS = 16


class Binding(Resource, frozen=True):
    """The members that have a role."""

    role: str = ""
    members: tuple[str, ...] = ()
    condition: dict[str, Any] | None = None


class Policy(Resource, frozen=True):
    """The bindings of one resource; `etag` changes with each change."""

    version: int = 0
    bindings: tuple[Binding, ...] = ()
    audit_configs: tuple[dict[str, Any], ...] = ()
    etag: str = ""


class _StoredPolicy(Protocol):
    """A policy as the state stores it."""

    @property
    def policy(self) -> Policy: ...


PoliciesByResource = Mapping[str, _StoredPolicy]


def is_allowed(policies: PoliciesByResource, caller: Caller, permission: str, resource: str) -> bool:
    """`resource` is a full name."""
    return caller == ADMIN or any(
        permission in ROLES[role] for role in _iter_roles(policies, caller, resource)
    )


def resolve_permissions(policies: PoliciesByResource, caller: Caller, resource: str) -> frozenset[str]:
    if caller == ADMIN:
        return PERMISSIONS
    return frozenset().union(*(ROLES[role] for role in _iter_roles(policies, caller, resource)))


def build_owner_policy(principal: str, role: str, etag: str) -> Policy:
    """Build the policy of a resource that a caller has created."""
    return Policy(version=1, bindings=(Binding(role=role, members=(principal,)),), etag=etag)


def normalize_principal(text: str) -> str:
    """Return the principal in lower case if it can have a token. Raises InvalidArgument."""
    kind, _, address = text.partition(":")
    principal = f"{kind}:{address.lower()}"
    if not _PRINCIPAL_FORMAT.fullmatch(principal):
        raise InvalidArgument(
            f"Invalid principal {text!r}: expected user:NAME@DOMAIN or serviceAccount:NAME@DOMAIN."
        )
    return principal


def normalize_bindings(given: Policy) -> tuple[Binding, ...]:
    """Return the bindings of a policy that was sent, one per role. Raises InvalidArgument with the field."""
    if given.audit_configs:
        raise _policy_error("audit_configs", "What is audited is a setting of the server, not of a policy.")
    check_policy_version(given.version, "policy.version")
    members: dict[str, set[str]] = {}
    for number, binding in enumerate(given.bindings):
        _check_binding(binding, f"bindings[{number}]")
        members.setdefault(binding.role, set()).update(
            _normalize_member(member, binding.role, f"bindings[{number}].members")
            for member in binding.members
        )
    if sum(len(one) for one in members.values()) > _MAX_MEMBERS:
        raise _policy_error("bindings", f"A policy can have at most {_MAX_MEMBERS} members.")
    return tuple(Binding(role=role, members=tuple(sorted(found))) for role, found in members.items() if found)


def check_policy_version(version: int, field: str) -> None:
    """Raises InvalidArgument."""
    if version not in _POLICY_VERSIONS:
        raise field_error(InvalidArgument, field, f"There is no policy version {version}; use 1.")


def check_permissions_exist(permissions: tuple[str, ...]) -> None:
    """Raise InvalidArgument for unknown permissions, as Google does."""
    for permission in permissions:
        if permission not in PERMISSIONS:
            raise field_error(
                InvalidArgument, "permissions", f"There is no permission {permission!r} on this resource."
            )


def _iter_roles(policies: PoliciesByResource, caller: Caller, resource: str) -> Iterator[str]:
    """The roles that a caller has on a resource or above it."""
    who = (
        {_ALL_USERS}
        if caller == ANONYMOUS_CALLER
        else {_ALL_USERS, _ALL_AUTHENTICATED_USERS, caller.principal}
    )
    for name in _iter_ancestors(resource):
        if name in policies:
            for binding in policies[name].policy.bindings:
                if not who.isdisjoint(binding.members):
                    yield binding.role


def _iter_ancestors(resource: str) -> Iterator[str]:
    """A resource and all above it: `a/b/c/d`, `a/b`, the server."""
    name = resource if resource.count("/") < _MAX_NAME_PARTS else ""
    while name and name != SERVER:
        yield name
        name = name.rpartition("/")[0].rpartition("/")[0]
    yield SERVER


def _check_binding(binding: Binding, field: str) -> None:
    if binding.condition is not None:
        raise _policy_error(f"{field}.condition", "Conditions are not supported; bind the role without one.")
    if binding.role not in ROLES:
        raise _policy_error(
            f"{field}.role", f"There is no role {binding.role!r} here. Those there are: {', '.join(ROLES)}."
        )


def _normalize_member(member: str, role: str, field: str) -> str:
    if member == _ALL_USERS and role not in PUBLIC_ROLES:
        raise _policy_error(
            field, f"{role} cannot be given to {_ALL_USERS}, only {', '.join(sorted(PUBLIC_ROLES))}."
        )
    if member in {_ALL_USERS, _ALL_AUTHENTICATED_USERS}:
        return member
    try:
        return normalize_principal(member)
    except InvalidArgument as error:
        raise _policy_error(
            field,
            f"Member {member!r} is not supported: a member is user:NAME@DOMAIN, serviceAccount:NAME@DOMAIN, "
            f"{_ALL_USERS} or {_ALL_AUTHENTICATED_USERS}. There are no groups and no domains here.",
        ) from error


def _policy_error(field: str, description: str) -> Exception:
    return field_error(InvalidArgument, f"policy.{field}", description)
