"""Linear models: logistic regression for classes, ridge regression for numbers.

They are solved as a whole, or trained by stochastic gradient descent where a flag asks for steps.
"""

from __future__ import annotations

import argparse
import math
import sys
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier, SGDRegressor
from sklearn.pipeline import make_pipeline

from serving.artifacts.storage import FileStore
from serving.errors import InvalidArgument, ServingError
from training.algorithms import metrics
from training.algorithms.arguments import (
    create_parser,
    parse_non_negative,
    parse_positive_count,
    read_data_arguments,
)
from training.algorithms.output import JobFolder, report_metrics
from training.algorithms.preprocessing import create_transformer
from training.algorithms.table import is_numeric, read_splits

CLASSIFICATION, REGRESSION = "classification", "regression"
_DEFAULT_BATCH_SIZE, _DEFAULT_LEARNING_RATE = 100, 0.01
# Passes over the data where --max_steps does not say how long to train: less if the model gets no better.
_MAX_PASSES = 1000
_SEED = 0


def main(words: list[str]) -> None:
    parser = create_parser("linear_learner")
    parser.add_argument("--model_type", choices=(CLASSIFICATION, REGRESSION), required=True)
    descent = parser.add_argument_group("stochastic gradient descent")
    descent.add_argument("--max_steps", type=parse_positive_count, help="Batches to train with.")
    descent.add_argument("--batch_size", type=parse_positive_count, help="Rows of a step, 100 by default.")
    descent.add_argument("--learning_rate", type=parse_non_negative)
    parser.add_argument("--l1_regularization_strength", type=parse_non_negative, default=0.0)
    parser.add_argument("--l2_regularization_strength", type=parse_non_negative, default=1.0)
    options = parser.parse_args(words)
    if options.learning_rate == 0:
        parser.error("--learning_rate must be more than 0.")
    data = read_data_arguments(parser, options)
    files = FileStore()
    splits = read_splits(data, files)
    features, targets = splits.training.iloc[:, 1:], splits.training[0]
    if not data.preprocess and not all(is_numeric(features[name]) for name in features):
        raise InvalidArgument(f"{data.training_path} has columns that are not numbers: add --preprocess.")
    if options.model_type == REGRESSION and not is_numeric(targets):
        raise InvalidArgument(f"The targets of {data.training_path} are not numbers; is it classification?")
    if options.model_type == CLASSIFICATION and targets.nunique() < 2:
        raise InvalidArgument(
            f"All targets of {data.training_path} are {targets[0]}: there is nothing to tell."
        )
    transformer, estimator = create_transformer(features, scale=True), _create_estimator(options)
    steps = _fit(estimator, transformer.fit_transform(features.to_numpy()), targets.to_numpy(), options)
    model = make_pipeline(transformer, estimator)
    judged = splits.validation if splits.validation is not None else splits.training
    found = _judge(model, judged.iloc[:, 1:].to_numpy(), judged[0], options.model_type)
    report_metrics(found, steps)
    folder = JobFolder(data.job_dir, files)
    if data.preprocess:
        folder.write_processed_data(splits)
    folder.write_metadata(features, list(getattr(model, "classes_", [])))
    folder.write_pipeline(model, found, steps)


def _create_estimator(options: argparse.Namespace) -> Any:
    classifies = options.model_type == CLASSIFICATION
    l1, l2 = options.l1_regularization_strength, options.l2_regularization_strength
    asks_for_descent = (options.learning_rate, options.max_steps, options.batch_size) != (None, None, None)
    if not l1 and not asks_for_descent:
        if not classifies:
            return Ridge(alpha=l2)
        return LogisticRegression(C=1 / l2 if l2 else float("inf"), max_iter=_MAX_PASSES)
    fields = {
        "penalty": "elasticnet",
        "alpha": 1e-4 * (l1 + l2),
        "l1_ratio": l1 / (l1 + l2) if l1 + l2 else 0.0,
        "max_iter": _MAX_PASSES,
        "random_state": _SEED,
    }
    if options.learning_rate is not None:
        fields |= {"learning_rate": "adaptive", "eta0": options.learning_rate}
    elif not l1 + l2:  # the schedule that classifiers have by default needs some
        fields |= {"learning_rate": "invscaling", "eta0": _DEFAULT_LEARNING_RATE}
    return SGDClassifier(loss="log_loss", **fields) if classifies else SGDRegressor(**fields)


def _fit(estimator: Any, features: Any, targets: Any, options: argparse.Namespace) -> int:
    """Returns how many batches of rows that took."""
    batch_size = options.batch_size or _DEFAULT_BATCH_SIZE
    if options.max_steps is None:
        estimator.fit(features, targets)
        passes = int(np.max(getattr(estimator, "n_iter_", None) or 1))
        return passes * math.ceil(len(targets) / batch_size)
    classes = {"classes": np.unique(targets)} if options.model_type == CLASSIFICATION else {}
    chance = np.random.default_rng(_SEED)
    rows_left = options.max_steps * batch_size
    # The weights change after each row, so batches need not be passed one by one.
    while rows_left > 0:
        rows = chance.permutation(len(targets))[:rows_left]
        estimator.partial_fit(features[rows], targets[rows], **classes)
        rows_left -= len(rows)
    return int(options.max_steps)


def _judge(model: Any, features: Any, targets: Any, kind: str) -> dict[str, float]:
    if kind == CLASSIFICATION:
        return metrics.compute_classification_metrics(targets, model.classes_, model.predict_proba(features))
    return metrics.compute_regression_metrics(targets, model.predict(features))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ServingError as error:
        sys.exit(error.message)
