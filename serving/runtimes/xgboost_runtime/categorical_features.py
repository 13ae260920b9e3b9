"""Categorical features of XGBoost models: texts in requests, codes in trees.

Since 3.1 XGBoost keeps the categories of a data frame in the model's file; a code is a category's place among
them. Earlier files have codes only, and so do categories that are numbers: a number in a request is always a
code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from serving.errors import InvalidInputs

_CATEGORICAL = "c"
_MAX_SHOWN = 20


@dataclass(frozen=True, slots=True)
class CategoryCodes:
    """The code of each text of a categorical feature; none where the file does not tell them."""

    codes: Mapping[str, int]

    @property
    def texts(self) -> tuple[str, ...]:
        """The categories in the order of their codes."""
        return tuple(self.codes)


def read_categories(booster: Any) -> dict[int, CategoryCodes]:
    """The categorical features of a model by their places."""
    places = [place for place, kind in enumerate(booster.feature_types or ()) if kind == _CATEGORICAL]
    if not places:
        return {}
    document = json.loads(booster.save_raw("json"))["learner"]["gradient_booster"]
    kept = document.get("gbtree", document)["model"].get("cats", {}).get("enc", [])
    return {place: CategoryCodes(_parse_codes(kept[place]) if place < len(kept) else {}) for place in places}


def encode_categories(
    rows: Sequence[Any], names: Sequence[str], categories: Mapping[int, CategoryCodes]
) -> list[list[Any]]:
    """Rows with the codes of their categories in place of texts. Raises InvalidInputs."""
    found = [list(row) if isinstance(row, list) else row for row in rows]
    for index, row in enumerate(found):
        for place, feature in categories.items():
            if isinstance(row, list) and place < len(row) and isinstance(row[place], str):
                row[place] = _find_code(row[place], index, _quote_feature(place, names), feature)
    return found


def _parse_codes(kept: Mapping[str, Any]) -> dict[str, int]:
    """Those of texts, which are one after the other in `values`.

    None where they are not ASCII: XGBoost 3.2 counts their characters for bytes, and keeps other texts.
    """
    offsets, values = kept.get("offsets", ()), kept.get("values", ())
    if not offsets or min(values, default=0) < 0:
        return {}
    data = bytes(values).decode()
    return {data[begin:end]: code for code, (begin, end) in enumerate(pairwise(offsets))}


def _find_code(text: str, index: int, name: str, feature: CategoryCodes) -> int:
    if not feature.codes:
        raise InvalidInputs(
            f"Instance {index} has a text for {name}, but the model's file does not keep the names of its "
            "categories: send their codes, numbers from 0 in the order of the categories in training."
        )
    if text not in feature.codes:
        more = f" and {len(feature.codes) - _MAX_SHOWN} more" if len(feature.codes) > _MAX_SHOWN else ""
        known = ", ".join(map(repr, feature.texts[:_MAX_SHOWN]))
        raise InvalidInputs(
            f"Instance {index} has the category {text!r} for {name}; the model knows {known}{more}."
        )
    return feature.codes[text]


def _quote_feature(place: int, names: Sequence[str]) -> str:
    return repr(names[place]) if names else f"value {place}"
