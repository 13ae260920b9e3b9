"""What the libraries under scikit-learn models put off until their first call, done when this is imported.

For pilots only. It starts no thread.
"""

from __future__ import annotations

import contextlib
import importlib

import numpy as np
import pandas as pd

# What scikit-learn from 1.9 on looks at its inputs with: it searches the whole environment for plugins, and
# imports its part for data frames when it sees one.
with contextlib.suppress(ImportError):
    narwhals = importlib.import_module("narwhals.stable.v2")
    for rows in (np.zeros((1, 1)), pd.DataFrame({"column": [0.0]})):
        narwhals.from_native(rows, pass_through=True)
