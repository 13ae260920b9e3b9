"""Rows of features, named or in order: what scikit-learn and XGBoost models have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from serving.errors import InvalidInputs
from serving.runtimes.conversion import kind

# Most features: a row of them takes half a gigabyte as Python's numbers.
WIDEST = 1 << 22
_SHOWN = 20


def are_objects(instances: object) -> bool:
    """Whether the rows name their features. The first one decides; `in_order` checks the others."""
    return isinstance(instances, list) and bool(instances) and isinstance(instances[0], dict)


def in_order(instances: Sequence[Any], names: Sequence[str]) -> list[list[Any]]:
    """Objects as lists with the features in the order of `names`.

    Raises InvalidInputs naming the instance and the feature that is missing or unknown.
    """
    if not names:
        raise InvalidInputs(
            "Instance 0 is an object, but the model was trained without column names: "
            "send each instance as a list of values."
        )
    known = frozenset(names)
    for index, instance in enumerate(instances):
        if not isinstance(instance, Mapping):
            raise InvalidInputs(f"Instance {index} is {kind(instance)}, but instance 0 is an object.")
        if instance.keys() != known:
            raise InvalidInputs(f"Instance {index} has {_difference(instance, names)}")
    return [[instance[name] for name in names] for instance in instances]


def frame(instances: Sequence[Any], names: Sequence[str]) -> pd.DataFrame:
    """A data frame with these columns, from objects or from lists in the same order. Raises InvalidInputs."""
    rows = listed(instances, names)
    return pd.DataFrame({name: [row[place] for row in rows] for place, name in enumerate(names)})


def listed(instances: Sequence[Any], names: Sequence[str]) -> Sequence[Any]:
    """Objects or lists as lists with a value for each of the names, in their order. Raises InvalidInputs."""
    if are_objects(instances):
        return in_order(instances, names)
    for index, row in enumerate(instances):
        _check_row(index, row, names)
    return instances


def made_up(count: int, width: int) -> NDArray[np.float64]:
    """Rows to try a numeric model with: ordinary, all zero and large ones in turn, always the same."""
    rows = np.random.default_rng(0).standard_normal((count, width))
    rows[1::3] = 0.0
    rows[2::3] *= 1000.0
    return rows


def _difference(instance: Mapping[str, Any], names: Sequence[str]) -> str:
    missing = [name for name in names if name not in instance]
    if missing:
        return f"no {_quoted(missing)}. The model takes {_quoted(names)}."
    unknown = [name for name in instance if name not in names]
    return f"an unknown {_quoted(unknown)}. The model takes {_quoted(names)}."


def _check_row(index: int, row: object, names: Sequence[str]) -> None:
    if not isinstance(row, list | tuple):
        raise InvalidInputs(
            f"Instance {index} is {kind(row)}; expected an object or a list with {_quoted(names)}."
        )
    if len(row) != len(names):
        raise InvalidInputs(
            f"Instance {index} has {len(row)} values; the model expects {len(names)}: {_quoted(names)}."
        )


def _quoted(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(f"'{name}'" for name in names[:_SHOWN]) + more
