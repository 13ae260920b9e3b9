"""What turns raw rows into numbers: a part of the model that is deployed."""

from __future__ import annotations

import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from training.algorithms.table import is_numeric

# Rarer categories of a column count as one.
_MOST_CATEGORIES = 100


def create_transformer(features: pd.DataFrame, *, scale: bool) -> ColumnTransformer:
    """Missing numbers become the mean, categories one column each; categories that are new are ignored.

    `scale`: numbers get mean 0 and variance 1. Columns are told by their place.
    """
    numeric = [place for place, name in enumerate(features) if is_numeric(features[name])]
    others = [place for place in range(features.shape[1]) if place not in numeric]
    steps = [SimpleImputer(), *([StandardScaler()] if scale else [])]
    categories = OneHotEncoder(
        handle_unknown="infrequent_if_exist", max_categories=_MOST_CATEGORIES, sparse_output=False
    )
    return ColumnTransformer(
        [("numbers", make_pipeline(*steps), numeric), ("categories", categories, others)]
    )
