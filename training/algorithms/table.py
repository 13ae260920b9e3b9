"""Tables of comma-separated values: read, cleaned, split."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from serving.artifacts.storage import FileStore
from serving.errors import InvalidArgument
from training.algorithms.arguments import DataArguments

# A row of which more is missing is left out.
_MOST_MISSING = 0.1
_SEED = 0


@dataclass(frozen=True, slots=True)
class DataSplits:
    """Rows to train with, to choose by, and to judge by at the end; the target is column 0."""

    training: pd.DataFrame
    validation: pd.DataFrame | None
    test: pd.DataFrame | None


def read_splits(data: DataArguments, files: FileStore) -> DataSplits:
    """Raises ServingError, with the file and what is wrong with it."""
    training = _read_table(data.training_path, files)
    validation = _read_table(data.validation_path, files) if data.validation_path else None
    test = _read_table(data.test_path, files) if data.test_path else None
    for path, table in ((data.validation_path, validation), (data.test_path, test)):
        if table is not None and table.shape[1] != training.shape[1]:
            raise InvalidArgument(
                f"{path} has {table.shape[1]} columns, but {data.training_path} has {training.shape[1]}."
            )
    if not data.preprocess:
        return DataSplits(training, validation, test)
    splits = _split(_drop_sparse_rows(training, data.training_path), data)
    return DataSplits(
        splits.training,
        validation if validation is not None else splits.validation,
        test if test is not None else splits.test,
    )


def _read_table(path: str, files: FileStore) -> pd.DataFrame:
    content = files.read(path)
    try:
        table = pd.read_csv(io.BytesIO(content), header=None, skipinitialspace=True)
    except (ValueError, pd.errors.ParserError) as error:
        raise InvalidArgument(f"{path} cannot be read as comma-separated values: {error}") from error
    if table.shape[1] < 2:
        raise InvalidArgument(f"{path} has one column; the first is the target, and features must follow it.")
    # Rows without a target tell nothing.
    return table[table[0].notna()].reset_index(drop=True)


def _drop_sparse_rows(table: pd.DataFrame, path: str) -> pd.DataFrame:
    kept = table[table.isna().mean(axis=1) <= _MOST_MISSING]
    if kept.empty:
        raise InvalidArgument(f"In each row of {path} over {_MOST_MISSING:.0%} of the values are missing.")
    return kept.reset_index(drop=True)


def _split(table: pd.DataFrame, data: DataArguments) -> DataSplits:
    """Split at random, the same way each time: a restarted job goes on with the same rows."""
    order = np.random.default_rng(_SEED).permutation(len(table))
    validation = math.ceil(len(table) * data.validation_split)
    test = math.ceil(len(table) * data.test_split)

    def part(begin: int, end: int) -> pd.DataFrame | None:
        return table.iloc[order[begin:end]].reset_index(drop=True) if end > begin else None

    training = table.iloc[order[validation + test :]].reset_index(drop=True)
    if training.empty:
        raise InvalidArgument(f"{data.training_path} has {len(table)} rows: too few to split.")
    return DataSplits(training, part(0, validation), part(validation, validation + test))


def is_numeric(column: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(column)
