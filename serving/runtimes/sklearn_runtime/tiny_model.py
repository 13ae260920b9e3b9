"""A tiny scikit-learn model, for the warm-up of spare nodes."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
from sklearn.ensemble import RandomForestClassifier


def write_tiny_model(folder: Path) -> None:
    """Train a model of two features, on one thread, and write it to a folder. Raises OSError."""
    rows = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 0.5], [1.0, 0.5]])
    forest = RandomForestClassifier(2, random_state=0).fit(rows, [0, 1, 0, 1])
    (folder / "model.pkl").write_bytes(pickle.dumps(forest))
