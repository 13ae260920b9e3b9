"""A tiny XGBoost model, for the warm-up of spare nodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import xgboost as xgb


def write_tiny_model(folder: Path) -> None:
    """Train a model of two features, on one thread, and write it to a folder. Raises OSError."""
    rows = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 0.5], [1.0, 0.5]])
    matrix = xgb.DMatrix(rows, label=[0, 1, 0, 1], nthread=1)
    parameters = {"nthread": 1, "max_depth": 1, "min_child_weight": 0, "seed": 0}
    xgb.train(parameters, matrix, num_boost_round=2).save_model(folder / "model.ubj")
