"""A tiny LightGBM model, for the warm-up of spare nodes."""

from __future__ import annotations

from pathlib import Path

import lightgbm as lgb
import numpy as np


def write_tiny_model(folder: Path) -> None:
    """Train a model of two features, on one thread, and write it to a folder. Raises OSError."""
    rows = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 0.5], [1.0, 0.5]])
    parameters = {
        "objective": "binary",
        "num_threads": 1,
        "min_data_in_leaf": 1,
        "min_data_in_bin": 1,
        "verbosity": -1,
        "seed": 0,
    }
    booster = lgb.train(parameters, lgb.Dataset(rows, [0, 1, 0, 1]), num_boost_round=2)
    booster.save_model(folder / "model.txt")
