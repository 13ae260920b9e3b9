"""Whether what was unpickled is a scikit-learn estimator that can predict, and how it is set up to do so."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from serving.errors import LoadFailed
from serving.runtimes.pickles import root


def check_class(model: Any, file: str, packages: bool) -> None:
    """Raise LoadFailed for what is no estimator; with user packages, for what has no `predict` either."""
    if any("sklearn" in kind.__module__ for kind in type(model).__mro__) or (packages and _predicts(model)):
        return
    name = f"{type(model).__module__}.{type(model).__name__}"
    if root(model) == "xgboost":
        raise LoadFailed(f"{file} holds a {name}: set the framework to XGBOOST, or leave it out.")
    raise LoadFailed(
        f"{file} holds a {name}, which is not a scikit-learn estimator. "
        "Save the fitted estimator or pipeline itself, or serve it with a custom prediction routine."
    )


def check_usable(model: Any, file: str) -> None:
    """Raise LoadFailed for what cannot predict, or is not fitted."""
    name = type(model).__name__
    if not _predicts(model):
        raise LoadFailed(f"{file} holds a {name}, which has no predict method.")
    if root(model) != "sklearn":
        return
    try:
        check_is_fitted(model)
    except NotFittedError as error:
        raise LoadFailed(f"{file} holds a {name} that is not fitted: call fit before saving it.") from error


def _predicts(model: Any) -> bool:
    return callable(getattr(model, "predict", None))


def one_job(inside: Iterable[Any]) -> None:
    """No joblib workers: they cost more than a prediction, and a node has one compute thread."""
    for part in inside:
        if getattr(part, "__dict__", {}).get("n_jobs"):
            part.n_jobs = 1
        if root(part) == "xgboost" and hasattr(part, "set_param"):
            part.set_param({"nthread": 1})
