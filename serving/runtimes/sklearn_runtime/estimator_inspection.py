"""What a scikit-learn estimator is made of, and what follows from that for its requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from sklearn.base import ClusterMixin, is_classifier, is_outlier_detector

from serving.errors import LoadFailed
from serving.runtimes.feature_rows import MAX_FEATURES
from serving.runtimes.pickle_loading import root_package
from serving.runtimes.user_packages import KNOWN_PACKAGES

# So much is shown of what is no number of features.
_MAX_SHOWN = 50
# What these give for a row may depend on the other rows.
_DEPENDENT_ROWS = frozenset(
    {"NMF", "MiniBatchNMF", "IterativeImputer", "LocalOutlierFactor", "FunctionTransformer"}
)
# These look at more than the numbers of a row: at columns, or through a function of anybody's.
_NOT_NUMERIC = frozenset({"ColumnTransformer", "FunctionTransformer"})
_LABELS_OR_TREES = (
    "sklearn.mixture.",
    "sklearn.tree.",
    "sklearn.ensemble._forest.",
    "sklearn.ensemble._gb.",
    "sklearn.ensemble._hist_gradient_boosting.",
)


@dataclass(frozen=True)
class EstimatorInspection:
    """What an estimator is made of, and what follows from that for its requests.

    `parts` are the estimator, everything inside it, and the functions it calls.
    """

    estimator: Any
    parts: tuple[Any, ...]

    @cached_property
    def is_library_code(self) -> bool:
        """Whether no code of a user takes part."""
        return all(root_package(part) in KNOWN_PACKAGES for part in self.parts)

    @cached_property
    def width(self) -> int | None:
        """The number of features of a row, None where the estimator does not say. Raises LoadFailed."""
        width = getattr(self.estimator, "n_features_in_", None)
        if width is None:
            return None
        try:
            number = int(width)
        except (TypeError, ValueError, OverflowError):
            number = -1
        if not 0 <= number <= MAX_FEATURES:
            kind, told = type(self.estimator).__name__, repr(width)[:_MAX_SHOWN]
            raise LoadFailed(
                f"The {kind} says that its rows have {told} features (n_features_in_); there can be 0 to "
                f"{MAX_FEATURES}. The file is damaged, or was changed after the model was fitted: save the "
                "model again."
            )
        return number

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        """The columns of the data frame it was fitted on, if it was one."""
        return tuple(map(str, getattr(self.estimator, "feature_names_in_", ())))

    @cached_property
    def part_tags(self) -> list[EstimatorTags]:
        """What the estimators inside take. An ensemble speaks for its trees: there may be thousands."""
        own = [
            part
            for part in self.parts
            if part is self.estimator or not _is_in_modules(part, ("sklearn.tree.",))
        ]
        return [tags for part in own if (tags := read_tags(part))]

    @cached_property
    def takes_numbers(self) -> bool:
        """Whether numbers in an array are all it wants: known classes, none after text or categories."""
        return (
            self.is_library_code
            and self.width is not None
            and not self.needs_names
            and all(map(_takes_numbers, self.parts))
            and all(tags.numbers for tags in self.part_tags)
        )

    @cached_property
    def has_trees(self) -> bool:
        """Whether trees take part."""
        return any(_is_in_modules(part, ("sklearn.tree.", "sklearn.ensemble.")) for part in self.parts)

    @cached_property
    def takes_nan(self) -> bool:
        """Whether NaN is let through to the library, which still has the last word."""
        return any(tags.nan for tags in self.part_tags)

    @cached_property
    def takes_text(self) -> bool:
        """Whether an instance is one string."""
        tags = read_tags(find_first_step(self.estimator))
        return tags is not None and tags.text and root_package(find_first_step(self.estimator)) == "sklearn"

    @cached_property
    def needs_names(self) -> bool:
        """Whether some step insists on the names, so that only a data frame will do."""
        return bool(self.feature_names) and (
            root_package(find_first_step(self.estimator)) == "xgboost"
            or any(map(_selects_by_name, self.parts))
        )

    @cached_property
    def has_independent_rows(self) -> bool:
        """Whether a row's answer cannot depend on its neighbours.

        A data frame's column types come from all its rows, so frames with more than numbers are not.
        """
        return (
            self.is_library_code
            and (self.takes_numbers or self.takes_text)
            and not any(map(_has_dependent_rows, self.parts))
        )

    @cached_property
    def exact(self) -> bool:
        """Labels, trees and user code: answers that may not change by a bit when rows are regrouped."""
        last = find_last_step(self.estimator)
        labels = is_classifier(last) or isinstance(last, ClusterMixin) or is_outlier_detector(last)
        return not self.is_library_code or labels or _is_in_modules(last, _LABELS_OR_TREES)


def find_first_step(estimator: Any) -> Any:
    """What sees the instances first: into pipelines and the winners of searches."""
    inner = [step for _, step in _list_steps(estimator) if step not in (None, "passthrough")][:1]
    inner = inner or [getattr(estimator, "best_estimator_", None)]
    return estimator if inner[0] is None else find_first_step(inner[0])


def find_last_step(estimator: Any) -> Any:
    """What the predictions come from. `predict` of a pipeline hands its arguments on to it."""
    steps = _list_steps(estimator)
    return find_last_step(steps[-1][1]) if steps else estimator


def _list_steps(estimator: Any) -> Sequence[tuple[str, Any]]:
    steps = getattr(estimator, "steps", None)
    return steps if isinstance(steps, list) and _is_pipeline(estimator) else []


def _is_pipeline(estimator: Any) -> bool:
    return any(
        kind.__name__ == "Pipeline" and _is_in_module(kind, "sklearn.") for kind in type(estimator).__mro__
    )


# What an estimator takes, in its own words.


@dataclass(frozen=True, slots=True)
class EstimatorTags:
    """Whether it takes numbers, text, and missing values."""

    numbers: bool
    text: bool
    nan: bool


def read_tags(part: Any) -> EstimatorTags | None:
    """The tags of an estimator, None for what is no estimator."""
    try:
        if hasattr(part, "__sklearn_tags__"):
            given = part.__sklearn_tags__().input_tags
            kinds = {
                name for name in ("string", "categorical", "dict", "three_d_array") if getattr(given, name)
            }
            return EstimatorTags(not kinds, given.string and not given.two_d_array, given.allow_nan)
        if hasattr(part, "_get_tags"):  # until scikit-learn 1.5
            given = part._get_tags()
            kinds = {*given["X_types"]}
            text = kinds == {"string"}
            return EstimatorTags(
                not kinds & {"string", "categorical", "dict", "3darray"}, text, given["allow_nan"]
            )
    except Exception:  # the estimator cannot say, so nothing is taken for granted
        return EstimatorTags(numbers=False, text=False, nan=False)
    return None


def takes_nan(estimator: Any) -> bool:
    """Whether NaN is a value for it."""
    tags = read_tags(estimator)
    return tags is not None and tags.nan


def _takes_numbers(part: Any) -> bool:
    # The imputer alone keeps quiet in its tags about having been fitted on strings.
    fitted = getattr(part, "_fit_dtype", None)
    return type(part).__name__ not in _NOT_NUMERIC and (fitted is None or np.dtype(fitted).kind in "biuf")


def _has_dependent_rows(part: Any) -> bool:
    # A dummy that guesses goes on from its last guess; gradient boosting starts from one that does not.
    guesses = type(part).__name__ == "DummyClassifier" and part.strategy in {"stratified", "uniform"}
    return guesses or type(part).__name__ in _DEPENDENT_ROWS


def _selects_by_name(transformer: Any) -> bool:
    if type(transformer).__name__ != "ColumnTransformer":
        return False
    picked = [columns for _, _, columns in getattr(transformer, "transformers_", ())]
    return any(isinstance(one, str) for columns in picked for one in np.atleast_1d(np.array(columns, object)))


def _is_in_modules(part: Any, modules: Iterable[str]) -> bool:
    return any(_is_in_module(type(part), module) for module in modules)


def _is_in_module(kind: type, module: str) -> bool:
    return f"{kind.__module__}.".startswith(module)
