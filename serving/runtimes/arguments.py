"""The extra fields of a request, as keyword arguments of a model's `predict`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from serving.errors import InvalidInputs

# Chooses a signature of a SavedModel. Clients send it whatever the framework, so it is never an error.
SIGNATURE_NAME = "signature_name"


def accepted(predict: Callable[..., Any], *, besides: Iterable[str] = ()) -> frozenset[str] | None:
    """The keyword arguments a bound `predict` takes after the instances, None when it takes any."""
    others = list(inspect.signature(predict).parameters.values())[1:]
    if any(one.kind is one.VAR_KEYWORD for one in others):
        return None
    return frozenset(one.name for one in others if one.kind is not one.VAR_POSITIONAL) - frozenset(besides)


def checked(
    parameters: Mapping[str, Any], known: frozenset[str] | None, owner: str, method: str = "predict"
) -> dict[str, Any]:
    """The parameters to call with. Raises InvalidInputs naming those that `owner` does not know."""
    if not parameters:
        return {}
    given = {name: value for name, value in parameters.items() if name != SIGNATURE_NAME}
    if known is None or given.keys() <= known:
        return given
    unknown = ", ".join(f"'{name}'" for name in given if name not in known)
    takes = f"it takes {', '.join(sorted(known))}" if known else "it takes none"
    raise InvalidInputs(f"The {method} of {owner} does not take the request field {unknown}; {takes}.")
