"""Boosted trees by XGBoost: alone, or each replica of a cluster with its share of the rows.

Without preprocessing the model is XGBoost's own file, for rows of numbers. With it, it is a pipeline of
scikit-learn that takes raw rows.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import xgboost
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import LabelEncoder

from serving.artifacts.storage import FileStore
from serving.errors import InvalidArgument, ServingError
from training.algorithms import metrics
from training.algorithms.arguments import DataArguments, create_parser, read_data_arguments
from training.algorithms.collective import ClusterPosition, join_cluster
from training.algorithms.output import JobFolder, report_metrics
from training.algorithms.preprocessing import create_transformer
from training.algorithms.table import DataSplits, is_numeric, read_splits

_CLASSIFIES = ("binary:", "multi:")
# Parameters of the loop around the boosting; all others go to XGBoost as they are.
_DEFAULT_ROUNDS = 100


def main(words: list[str], position: ClusterPosition) -> None:
    parser = create_parser("boosted_trees")
    parser.add_argument("--objective", required=True, help="As XGBoost has it, like reg:squarederror.")
    parser.add_argument("--num_boost_round", type=int, default=_DEFAULT_ROUNDS)
    parser.add_argument("--early_stopping_rounds", type=int)
    # What is left are parameters of XGBoost.
    options, rest = parser.parse_known_args(words)
    data = read_data_arguments(parser, options)
    if data.preprocess and position.size > 1:
        parser.error("--preprocess is for one replica: it needs all rows.")
    files = FileStore()
    splits = read_splits(data, files)
    training = _Training(data, options, parse_parameters(rest, parser), splits)
    with join_cluster(position):
        booster = training.boost(position)
    if position.rank == 0:
        training.write_output(booster, JobFolder(data.job_dir, files))


def parse_parameters(words: list[str], parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Parameters as `--eta=0.3` or `--eta 0.3`; numbers are read as such."""
    found: dict[str, Any] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            if name:
                parser.error(f"--{name} has no value.")
            name, equals, value = word.removeprefix("--").partition("=")
            if not equals:
                continue
        elif name:
            value = word
        else:
            parser.error(f"{word!r} belongs to no flag.")
        found[name], name = _parse_value(value), ""
    if name:
        parser.error(f"--{name} has no value.")
    return found


def _parse_value(text: str) -> Any:
    with contextlib.suppress(ValueError, SyntaxError):
        value = ast.literal_eval(text)
        if isinstance(value, int | float):
            return value
    return text


class _Training:
    def __init__(
        self,
        data: DataArguments,
        options: argparse.Namespace,
        parameters: Mapping[str, Any],
        splits: DataSplits,
    ) -> None:
        self._data = data
        self._options = options
        self._splits = splits
        self._features = splits.training.iloc[:, 1:]
        self._encoder = LabelEncoder()
        self._classifies = options.objective.startswith(_CLASSIFIES)
        self._parameters = {"objective": options.objective, **parameters}
        self._transformer = create_transformer(self._features, scale=False)
        if self._classifies:
            self._encoder.fit(splits.training[0])
            self._set_class_count()
        elif not is_numeric(splits.training[0]):
            raise InvalidArgument(f"The targets of {data.training_path} are not numbers.")
        if data.preprocess:
            self._transformer.fit(self._features.to_numpy())
        elif not all(is_numeric(self._features[name]) for name in self._features):
            raise InvalidArgument(f"{data.training_path} has columns that are not numbers: add --preprocess.")

    def boost(self, position: ClusterPosition) -> xgboost.Booster:
        training = self._make_matrix(self._splits.training.iloc[position.rank :: position.size])
        evaluations = [(training, "training")]
        if self._splits.validation is not None:
            validation = self._splits.validation.iloc[position.rank :: position.size]
            evaluations.append((self._make_matrix(validation), "validation"))
        return xgboost.train(
            dict(self._parameters),
            training,
            self._options.num_boost_round,
            evals=evaluations,
            early_stopping_rounds=self._options.early_stopping_rounds,
            verbose_eval=max(1, self._options.num_boost_round // 10),
        )

    def write_output(self, booster: xgboost.Booster, folder: JobFolder) -> None:
        splits = self._splits
        found = self._judge(booster, splits.validation if splits.validation is not None else splits.training)
        rounds = booster.num_boosted_rounds()
        report_metrics(found, rounds)
        folder.write_metadata(self._features, self._encoder.classes_.tolist() if self._classifies else [])
        if self._data.preprocess:
            folder.write_processed_data(splits)
            pipeline = make_pipeline(self._transformer, self._make_estimator(booster))
            folder.write_pipeline(pipeline, found, rounds)
        else:
            folder.write_model("model.bst", bytes(booster.save_raw("ubj")), "XGBOOST", found, rounds)

    def _set_class_count(self) -> None:
        """XGBoost takes 0, 1, ... for classes; it is told how many there are."""
        classes = self._encoder.classes_
        if self._options.objective.startswith("multi:"):
            self._parameters.setdefault("num_class", len(classes))
        elif len(classes) != 2:
            raise InvalidArgument(
                f"{self._options.objective} is for two classes, but {self._data.training_path} has "
                f"{len(classes)}."
            )

    def _make_matrix(self, table: pd.DataFrame) -> xgboost.DMatrix:
        features = table.iloc[:, 1:].to_numpy()
        if self._data.preprocess:
            features = self._transformer.transform(features)
        targets = self._encoder.transform(table[0]) if self._classifies else table[0]
        return xgboost.DMatrix(features, np.asarray(targets))

    def _judge(self, booster: xgboost.Booster, table: pd.DataFrame) -> dict[str, float]:
        """Metrics of an objective with probabilities or numbers; of others what XGBoost says."""
        matrix = self._make_matrix(table)
        predicted = booster.predict(matrix)
        if not self._classifies:
            return metrics.compute_regression_metrics(table[0], predicted)
        targets = matrix.get_label().astype(int)
        classes = np.arange(len(self._encoder.classes_))
        if self._options.objective == "binary:logistic":
            predicted = np.column_stack([1 - predicted, predicted])
        if predicted.ndim == 2:
            return metrics.compute_classification_metrics(targets, classes, predicted)
        return {"accuracy": float(np.mean(predicted.astype(int) == targets))}

    def _make_estimator(self, booster: xgboost.Booster) -> Any:
        kind = xgboost.XGBClassifier if self._classifies else xgboost.XGBRegressor
        estimator = kind()
        estimator.load_model(bytearray(booster.save_raw("ubj")))
        return estimator


@contextlib.contextmanager
def exit_on_error() -> Iterator[None]:
    """End the program with the message of an expected error."""
    try:
        yield
    except ServingError as error:
        sys.exit(error.message)
    except xgboost.core.XGBoostError as error:
        # The stack of XGBoost's own code says nothing to who wrote the flags.
        sys.exit(" ".join(str(error).partition("\nStack trace:")[0].split()))


if __name__ == "__main__":
    with exit_on_error():
        main(sys.argv[1:], ClusterPosition())
