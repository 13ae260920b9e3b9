"""Lazy imports of scikit-learn's dependencies, triggered in the pilot so that forks share them.

Importing this module starts no thread.
"""

from __future__ import annotations

import contextlib
import importlib

import numpy as np
import pandas as pd

# scikit-learn from 1.9 on inspects its inputs with narwhals, which searches the whole environment for plugins
# at its first call, and imports its part for data frames when it sees one.
with contextlib.suppress(ImportError):
    narwhals = importlib.import_module("narwhals.stable.v2")
    for rows in (np.zeros((1, 1)), pd.DataFrame({"column": [0.0]})):
        narwhals.from_native(rows, pass_through=True)
