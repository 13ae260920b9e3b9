"""Linear models: logistic regression for classes, ridge regression for numbers."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier, SGDRegressor
from sklearn.pipeline import make_pipeline

from serving.artifacts.storage import FileStore
from serving.errors import InvalidArgument, ServingError
from training.algorithms import metrics
from training.algorithms.arguments import create_parser, read_data_arguments
from training.algorithms.output import JobFolder, report_metrics
from training.algorithms.preprocessing import create_transformer
from training.algorithms.table import is_numeric, read_splits

CLASSIFICATION, REGRESSION = "classification", "regression"


def main(words: list[str]) -> None:
    parser = create_parser("linear_learner")
    parser.add_argument("--model_type", choices=(CLASSIFICATION, REGRESSION), required=True)
    parser.add_argument("--learning_rate", type=float, help="Train by stochastic gradient descent.")
    parser.add_argument("--max_steps", type=int, default=1000, help="Passes over the data, at most.")
    parser.add_argument("--l1_regularization_strength", type=float, default=0.0)
    parser.add_argument("--l2_regularization_strength", type=float, default=1.0)
    options = parser.parse_args(words)
    data = read_data_arguments(parser, options)
    files = FileStore()
    splits = read_splits(data, files)
    features, targets = splits.training.iloc[:, 1:], splits.training[0]
    if not data.preprocess and not all(is_numeric(features[name]) for name in features):
        raise InvalidArgument(f"{data.training_path} has columns that are not numbers: add --preprocess.")
    if options.model_type == REGRESSION and not is_numeric(targets):
        raise InvalidArgument(f"The targets of {data.training_path} are not numbers; is it classification?")
    model = make_pipeline(create_transformer(features, scale=True), _create_estimator(options))
    model.fit(features.to_numpy(), targets)
    judged = splits.validation if splits.validation is not None else splits.training
    found = _judge(model, judged.iloc[:, 1:].to_numpy(), judged[0], options.model_type)
    report_metrics(found, options.max_steps)
    folder = JobFolder(data.job_dir, files)
    if data.preprocess:
        folder.write_processed_data(splits)
    folder.write_artifacts(features, list(getattr(model, "classes_", [])))
    folder.write_pipeline(model, found)


def _create_estimator(options: argparse.Namespace) -> Any:
    classifies = options.model_type == CLASSIFICATION
    l1, l2 = options.l1_regularization_strength, options.l2_regularization_strength
    if options.learning_rate is None and not l1:
        if not classifies:
            return Ridge(alpha=l2)
        return LogisticRegression(C=1 / l2 if l2 else float("inf"), max_iter=options.max_steps)
    fields = {
        "penalty": "elasticnet",
        "alpha": 1e-4 * (l1 + l2),
        "l1_ratio": l1 / (l1 + l2) if l1 + l2 else 0.0,
        "max_iter": options.max_steps,
        "random_state": 0,
    }
    if options.learning_rate is not None:
        fields |= {"learning_rate": "adaptive", "eta0": options.learning_rate}
    return SGDClassifier(loss="log_loss", **fields) if classifies else SGDRegressor(**fields)


def _judge(model: Any, features: Any, targets: Any, kind: str) -> dict[str, float]:
    if kind == CLASSIFICATION:
        return metrics.compute_classification_metrics(targets, model.classes_, model.predict_proba(features))
    return metrics.compute_regression_metrics(targets, model.predict(features))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ServingError as error:
        sys.exit(error.message)
