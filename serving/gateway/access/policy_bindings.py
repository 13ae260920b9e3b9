"""Changes of the bindings of an IAM policy, as JSON has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serving.errors import NotFound

Binding = dict[str, Any]


def add_member(
    policy: Mapping[str, Any], member: str, role: str, condition: Binding | None = None
) -> dict[str, Any]:
    """The policy with a member in the binding of a role."""
    bindings = [dict(binding) for binding in policy.get("bindings", ())]
    for binding in bindings:
        if binding["role"] == role and binding.get("condition") == condition:
            if member not in binding["members"]:
                binding["members"] = [*binding["members"], member]
            return {**policy, "bindings": bindings}
    new = {"role": role, "members": [member]} | ({"condition": condition} if condition else {})
    return {**policy, "bindings": [*bindings, new]}


def remove_member(
    policy: Mapping[str, Any],
    member: str,
    role: str,
    condition: Binding | None = None,
    *,
    any_condition: bool = False,
) -> dict[str, Any]:
    """The policy without a member in the binding of a role. Raises NotFound if it is in none."""
    bindings: list[Binding] = []
    found = False
    for binding in policy.get("bindings", ()):
        selected = binding["role"] == role and (any_condition or binding.get("condition") == condition)
        if selected and member in binding["members"]:
            found = True
            kept = [one for one in binding["members"] if one != member]
            if kept:
                bindings.append({**binding, "members": kept})
        else:
            bindings.append(binding)
    if not found:
        raise NotFound(f"The policy has no binding of {member} to {role}.")
    return {**policy, "bindings": bindings}
