"""Categorical features of LightGBM models: texts in requests, codes in trees.

The file of a model that was trained on a data frame keeps the categories of its columns; a code is the place
of a category among them. As in LightGBM itself a category that training has not seen is a missing value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

CategoryCodes = Mapping[str, int]
"""The code of each text of a feature."""


def match_categories(
    kept: Sequence[Sequence[Any]] | None, places: Sequence[int]
) -> dict[int, Sequence[Any]] | None:
    """The categories by place of the feature; None where the file does not tell which are whose.

    `kept` are those of all categorical columns of the data frame in their order, `places` those of the
    features that were categorical in training: columns of ordered categories were not.
    """
    if not kept:
        return {}
    return dict(zip(places, kept, strict=True)) if len(kept) == len(places) else None


def list_text_codes(categories: Mapping[int, Sequence[Any]]) -> dict[int, CategoryCodes]:
    """The codes of those features whose categories are texts."""
    return {
        place: {text: code for code, text in enumerate(values)}
        for place, values in categories.items()
        if values and all(isinstance(value, str) for value in values)
    }


def encode_categories(rows: Sequence[Any], codes: Mapping[int, CategoryCodes]) -> list[Any]:
    """Rows with the codes of their categories in place of texts, NaN for those that are not known."""
    encoded = [list(row) if isinstance(row, list) else row for row in rows]
    for row in encoded:
        for place, known in codes.items():
            if isinstance(row, list) and place < len(row) and isinstance(row[place], str):
                row[place] = known.get(row[place], math.nan)
    return encoded
