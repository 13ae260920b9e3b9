"""Rows of features, named or in order: what scikit-learn and XGBoost models have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from serving.errors import InvalidInputs
from serving.runtimes.input_conversion import describe_json_type

# Most features: a row of them takes half a gigabyte as Python's numbers.
MAX_FEATURES = 1 << 22
_MAX_SHOWN = 20


def starts_with_object(instances: object) -> bool:
    """Whether the rows name their features. The first one decides; `order_features` checks the others."""
    return isinstance(instances, list) and bool(instances) and isinstance(instances[0], dict)


def order_features(instances: Sequence[Any], names: Sequence[str]) -> list[list[Any]]:
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
            raise InvalidInputs(
                f"Instance {index} is {describe_json_type(instance)}, but instance 0 is an object."
            )
        if instance.keys() != known:
            raise InvalidInputs(f"Instance {index} has {_describe_mismatch(instance, names)}")
    return [[instance[name] for name in names] for instance in instances]


def describe_nested_value(rows: Sequence[Sequence[Any]], names: Sequence[str]) -> str:
    """A sentence on the first feature that has a list or an object for a value, "" if none has.

    The rows are those of `order_features`.
    """
    for index, row in enumerate(rows):
        for name, value in zip(names, row, strict=True):
            if isinstance(value, list | dict):
                kind = describe_json_type(value)
                return f"Instance {index} has {kind} for '{name}'; a feature takes one value."
    return ""


def build_data_frame(instances: Sequence[Any], names: Sequence[str]) -> pd.DataFrame:
    """A data frame with these columns, from objects or from lists in the same order. Raises InvalidInputs."""
    rows = to_feature_lists(instances, names)
    return pd.DataFrame({name: [row[place] for row in rows] for place, name in enumerate(names)})


def to_feature_lists(instances: Sequence[Any], names: Sequence[str]) -> Sequence[Any]:
    """Objects or lists as lists with a value for each of the names, in their order. Raises InvalidInputs."""
    if starts_with_object(instances):
        return order_features(instances, names)
    for index, row in enumerate(instances):
        _check_row(index, row, names)
    return instances


def make_numeric_rows(count: int, width: int) -> NDArray[np.float64]:
    """Rows to try a numeric model with: ordinary, all zero and large ones in turn, always the same."""
    rows = np.random.default_rng(0).standard_normal((count, width))
    rows[1::3] = 0.0
    rows[2::3] *= 1000.0
    return rows


def _describe_mismatch(instance: Mapping[str, Any], names: Sequence[str]) -> str:
    missing = [name for name in names if name not in instance]
    if missing:
        return f"no {_quote_names(missing)}. The model takes {_quote_names(names)}."
    unknown = [name for name in instance if name not in names]
    return f"an unknown {_quote_names(unknown)}. The model takes {_quote_names(names)}."


def _check_row(index: int, row: object, names: Sequence[str]) -> None:
    if not isinstance(row, list | tuple):
        raise InvalidInputs(
            f"Instance {index} is {describe_json_type(row)}; expected an object or a list with "
            f"{_quote_names(names)}."
        )
    if len(row) != len(names):
        raise InvalidInputs(
            f"Instance {index} has {len(row)} values; the model expects {len(names)}: {_quote_names(names)}."
        )


def _quote_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
    return ", ".join(f"'{name}'" for name in names[:_MAX_SHOWN]) + more
