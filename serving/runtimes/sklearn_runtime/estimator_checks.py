"""Whether what was unpickled is a scikit-learn estimator that can predict, and how it is set up to do so."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from serving.errors import LoadFailed
from serving.predictor.program import list_methods, missing_method_text
from serving.runtimes.pickle_loading import describe_saved_version, root_package


def check_class(model: Any, file: str, has_packages: bool) -> None:
    """Raise LoadFailed for what is no estimator; with user packages, for what has no `predict` either."""
    if any("sklearn" in kind.__module__ for kind in type(model).__mro__) or (
        has_packages and _has_predict(model)
    ):
        return
    name = f"{type(model).__module__}.{type(model).__name__}"
    if root_package(model) == "xgboost":
        raise LoadFailed(f"{file} holds a {name}: set the framework to XGBOOST, or leave it out.")
    raise LoadFailed(
        f"{file} holds a {name}, which is not a scikit-learn estimator. "
        "Save the fitted estimator or pipeline itself, or serve it with a custom prediction routine."
    )


def check_usable(model: Any, file: str, method: str) -> None:
    """Raise LoadFailed for what does not have the method, or is not fitted."""
    name = type(model).__name__
    methods = list_methods(model)
    if method not in methods:
        raise LoadFailed(missing_method_text(file, model, method, methods))
    if root_package(model) != "sklearn":
        return
    try:
        check_is_fitted(model)
    except NotFittedError as error:
        raise LoadFailed(f"{file} holds a {name} that is not fitted: call fit before saving it.") from error


def _has_predict(model: Any) -> bool:
    return callable(getattr(model, "predict", None))


def check_compatibility(inside: Iterable[Any], file: Path) -> None:
    """Raise LoadFailed for models of other versions that this version silently misreads."""
    for part in inside:
        state = getattr(part, "__dict__", {})
        if root_package(part) != "sklearn":
            continue
        if state.get("algorithm") == "SAMME.R" and "algorithm" not in part.get_params(deep=False):
            what = (
                "an AdaBoostClassifier with the algorithm SAMME.R, which this version computes by another one"
            )
        elif "tree_" in state and _has_sample_counts(part) and not _has_sample_counts(_fit_small_tree()):
            what = "trees that hold numbers of samples, which this version reads as shares of them"
        else:
            continue
        raise LoadFailed(f"{file.name} holds {what}: it would answer wrongly. {describe_saved_version(file)}")


def _has_sample_counts(tree: Any) -> bool:
    """Whether the values of a classifier's nodes are numbers of samples, and not shares of them."""
    return is_classifier(tree) and not np.allclose(tree.tree_.value[0].sum(axis=-1), 1.0)


def _fit_small_tree() -> Any:
    # Only where there is a tree, which has imported it.
    from sklearn.tree import DecisionTreeClassifier  # noqa: PLC0415

    return DecisionTreeClassifier().fit([[0.0], [1.0], [2.0]], [0, 1, 1])


def force_single_job(inside: Iterable[Any]) -> None:
    """No joblib workers: they cost more than a prediction, and a node has one compute thread."""
    for part in inside:
        if getattr(part, "__dict__", {}).get("n_jobs"):
            part.n_jobs = 1
        if root_package(part) == "xgboost" and hasattr(part, "set_param"):
            part.set_param({"nthread": 1})
