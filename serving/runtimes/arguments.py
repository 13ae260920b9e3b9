"""The extra fields of a request, as keyword arguments of a model's `predict`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from serving.errors import InvalidInputs

# Chooses a signature of a SavedModel. Clients send it whatever the framework, so it is never an error.
SIGNATURE_NAME = "signature_name"


def list_arguments(predict: Callable[..., Any], *, excluding: Iterable[str] = ()) -> frozenset[str] | None:
    """The keyword arguments a bound `predict` takes after the instances, None when it takes any."""
    arguments = list(inspect.signature(predict).parameters.values())[1:]
    if any(one.kind is one.VAR_KEYWORD for one in arguments):
        return None
    return frozenset(one.name for one in arguments if one.kind is not one.VAR_POSITIONAL) - frozenset(
        excluding
    )


def check_arguments(
    parameters: Mapping[str, Any], known: frozenset[str] | None, owner: str, method: str = "predict"
) -> dict[str, Any]:
    """The parameters to call with. Raises InvalidInputs naming those that `owner` does not know."""
    if not parameters:
        return {}
    arguments = {name: value for name, value in parameters.items() if name != SIGNATURE_NAME}
    if known is None or arguments.keys() <= known:
        return arguments
    unknown = ", ".join(f"'{name}'" for name in arguments if name not in known)
    takes = f"it takes {', '.join(sorted(known))}" if known else "it takes none"
    raise InvalidInputs(f"The {method} of {owner} does not take the request field {unknown}; {takes}.")
