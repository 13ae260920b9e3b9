"""How good predictions are."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.metrics import accuracy_score, log_loss, root_mean_squared_error


def compute_classification_metrics(
    targets: ArrayLike, classes: Any, probabilities: ArrayLike
) -> dict[str, float]:
    """`probabilities` has a row for each target, and a column for each class."""
    table = np.asarray(probabilities)
    predicted = np.asarray(classes)[table.argmax(axis=1)]
    return {
        "accuracy": float(accuracy_score(targets, predicted)),
        "logloss": float(log_loss(targets, table, labels=classes)),
    }


def compute_regression_metrics(targets: ArrayLike, predicted: ArrayLike) -> dict[str, float]:
    return {"rmse": float(root_mean_squared_error(targets, predicted))}
