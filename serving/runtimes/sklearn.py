"""scikit-learn models: estimators and pipelines in `model.joblib` or `model.pkl`.

The answer is that of `estimator.predict(instances)`, to the bit. What the estimator is made of decides
how much may be done for it: known numeric steps get one dense array and may share calls, anything else
gets the plain rows of the request, alone.
"""

from __future__ import annotations

import sys
import threading
import traceback
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from sklearn import config_context, set_config
from sklearn.base import is_classifier, is_clusterer, is_outlier_detector
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from serving.errors import InvalidInputs, InvalidOutputs, LoadFailed, ModelFailed
from serving.runtimes import Array, Form, Rows, Runtime, Source, frames, linear, pickles
from serving.runtimes.arguments import accepted, checked
from serving.runtimes.conversion import kind
from serving.runtimes.detect import find_model
from serving.runtimes.instances import Batch
from serving.runtimes.pickles import root
from serving.runtimes.threads import ThreadLimit

# Code of these does with its input what its documentation says; everything else is the user's.
_LIBRARIES = frozenset({"sklearn", "numpy", "scipy", "pandas", "joblib", "xgboost", "serving"})
_KNOWN = _LIBRARIES | sys.stdlib_module_names
# What these give for a row may depend on the other rows.
_DEPENDENT = frozenset(
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


class SklearnRuntime:
    """A scikit-learn estimator; `warnings` is what was said while it was loaded."""

    framework = "SCIKIT_LEARN"

    def __init__(self, loaded: pickles.Loaded, threads: int) -> None:
        self.warnings = loaded.warnings
        self._estimator = loaded.model
        self._anatomy = anatomy = Anatomy(loaded.model, loaded.parts)
        self.mergeable = anatomy.independent
        self.exact = anatomy.exact
        self._form = (
            Array(anatomy.width, anatomy.nullable, bool(anatomy.names)) if anatomy.numeric else Rows()
        )
        last = last_step(loaded.model)
        self._owner = type(last).__name__
        self._known = accepted(last.predict)
        # Only for one estimator alone: between the steps of a pipeline values can become infinite.
        self._may_assume_finite = anatomy.numeric and len(anatomy.tagged) == 1
        self._thread = _Thread(threads, assume_finite=self._may_assume_finite)
        self._product = self._find_product()

    def form(self, parameters: Mapping[str, Any]) -> Form:
        """One array for models of known numeric steps, plain rows for all others."""
        self._arguments(parameters)
        return self._form

    def predict(self, instances: Any, /, **parameters: Any) -> Batch:
        """What `estimator.predict` says. Objects become a data frame, where the model was trained on one."""
        arguments = self._arguments(parameters)
        inputs = self._inputs(instances)
        if self._product is not None and not arguments and self._is_plain(inputs):
            return self._product(inputs)
        self._thread.prepare()
        try:
            if self._may_assume_finite and not _is_plainly_finite(inputs):
                with config_context(assume_finite=False):
                    result = self._estimator.predict(inputs, **arguments)
            else:
                result = self._estimator.predict(inputs, **arguments)
        except Exception as error:
            raise _explained(error) from error
        return _checked(result, len(instances))

    def samples(self, count: int) -> Batch | None:
        """Numbers in the width of the model; None where the rows hold more than numbers."""
        width = self._anatomy.width
        return frames.made_up(count, width) if self._anatomy.numeric and width else None

    def warmup_requests(self) -> tuple[()]:
        """None: scikit-learn models carry no recorded requests."""
        return ()

    def _find_product(self) -> linear.Product | None:
        width = self._anatomy.width
        if not self._may_assume_finite or not width:
            return None
        samples = [*(frames.made_up(count, width) for count in (1, 2, 64)), np.full((3, width), 2)]
        return linear.product(self._estimator, samples)

    def _is_plain(self, inputs: Any) -> bool:
        """Whether the library's checks would find nothing wrong with the rows."""
        return _is_plainly_finite(inputs) and inputs.ndim == 2 and inputs.shape[1] == self._anatomy.width

    def _arguments(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        return checked(parameters, self._known, self._owner)

    def _inputs(self, instances: Any) -> Any:
        if isinstance(instances, np.ndarray):
            return instances
        anatomy = self._anatomy
        if anatomy.text:
            _check_text(instances)
        elif anatomy.by_name or (frames.are_objects(instances) and (anatomy.names or anatomy.numeric)):
            return frames.frame(instances, anatomy.names)
        return instances


@dataclass(frozen=True)
class Anatomy:
    """What an estimator is made of, and what follows from that for its requests.

    `parts` are the estimator, everything inside it, and the functions it calls.
    """

    estimator: Any
    parts: tuple[Any, ...]

    @cached_property
    def builtin(self) -> bool:
        """Whether no code of a user takes part."""
        return all(root(part) in _KNOWN for part in self.parts)

    @cached_property
    def width(self) -> int | None:
        """The number of features of a row, None where the estimator does not say."""
        width = getattr(self.estimator, "n_features_in_", None)
        return None if width is None else int(width)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The columns of the data frame it was fitted on, if it was one."""
        return tuple(map(str, getattr(self.estimator, "feature_names_in_", ())))

    @cached_property
    def tagged(self) -> list[_Tags]:
        """What the estimators inside take. An ensemble speaks for its trees: there may be thousands."""
        own = [part for part in self.parts if part is self.estimator or not _is_in(part, ("sklearn.tree.",))]
        return [tags for part in own if (tags := _tags(part))]

    @cached_property
    def numeric(self) -> bool:
        """Whether numbers in an array are all it wants: known classes, none after text or categories."""
        return (
            self.builtin
            and self.width is not None
            and not self.by_name
            and all(map(_is_numeric, self.parts))
            and all(tags.numbers for tags in self.tagged)
        )

    @cached_property
    def nullable(self) -> bool:
        """Whether NaN is let through to the library, which still has the last word."""
        return any(tags.nan for tags in self.tagged)

    @cached_property
    def text(self) -> bool:
        """Whether an instance is one string."""
        tags = _tags(first_step(self.estimator))
        return tags is not None and tags.text and root(first_step(self.estimator)) == "sklearn"

    @cached_property
    def by_name(self) -> bool:
        """Whether some step insists on the names, so that only a data frame will do."""
        return bool(self.names) and (
            root(first_step(self.estimator)) == "xgboost" or any(map(_picks_by_name, self.parts))
        )

    @cached_property
    def independent(self) -> bool:
        """Whether a row's answer cannot depend on its neighbours.

        A data frame's column types come from all its rows, so frames with more than numbers are not.
        """
        return self.builtin and (self.numeric or self.text) and not any(map(_depends_on_others, self.parts))

    @cached_property
    def exact(self) -> bool:
        """Labels, trees and user code: answers that may not change by a bit when rows are regrouped."""
        last = last_step(self.estimator)
        labels = is_classifier(last) or is_clusterer(last) or is_outlier_detector(last)
        return not self.builtin or labels or _is_in(last, _LABELS_OR_TREES)


def load(source: Source) -> Runtime:
    """Load `model.joblib` or `model.pkl`. Raises LoadFailed with a sentence that says what to do."""
    file = find_model(source.model_dir, "SCIKIT_LEARN")
    loaded = pickles.load(file, source.packages)
    model = loaded.model
    if root(model) == "xgboost" and hasattr(model, "get_booster"):
        # The contract takes XGBClassifier for scikit-learn too: its module is called xgboost.sklearn.
        from serving.runtimes.xgboost import EstimatorRuntime  # noqa: PLC0415  xgboost only where it is served

        return EstimatorRuntime(model, loaded.warnings, source.threads)
    _check_class(model, file.name, bool(source.packages))
    _check_usable(model, file.name)
    _one_job(loaded.parts)
    # Rows without names are a legal way to ask a model that was fitted with names.
    warnings.filterwarnings("ignore", "X does not have valid feature names", UserWarning)
    return SklearnRuntime(loaded, source.threads)


def first_step(estimator: Any) -> Any:
    """What sees the instances first: into pipelines and the winners of searches."""
    inner = [step for _, step in _steps(estimator) if step not in (None, "passthrough")][:1]
    inner = inner or [getattr(estimator, "best_estimator_", None)]
    return estimator if inner[0] is None else first_step(inner[0])


def last_step(estimator: Any) -> Any:
    """What the predictions come from. `predict` of a pipeline hands its arguments on to it."""
    steps = _steps(estimator)
    return last_step(steps[-1][1]) if steps else estimator


def _steps(estimator: Any) -> Sequence[tuple[str, Any]]:
    steps = getattr(estimator, "steps", None)
    return steps if isinstance(steps, list) and _is_pipeline(estimator) else []


def _is_pipeline(estimator: Any) -> bool:
    return any(kind.__name__ == "Pipeline" and _within(kind, "sklearn.") for kind in type(estimator).__mro__)


# What an estimator takes, in its own words.


@dataclass(frozen=True, slots=True)
class _Tags:
    numbers: bool
    text: bool
    nan: bool


def _tags(part: Any) -> _Tags | None:
    """The tags of an estimator, None for what is no estimator."""
    try:
        if hasattr(part, "__sklearn_tags__"):
            given = part.__sklearn_tags__().input_tags
            kinds = {
                name for name in ("string", "categorical", "dict", "three_d_array") if getattr(given, name)
            }
            return _Tags(not kinds, given.string and not given.two_d_array, given.allow_nan)
        if hasattr(part, "_get_tags"):  # until scikit-learn 1.5
            given = part._get_tags()
            kinds = {*given["X_types"]}
            text = kinds == {"string"}
            return _Tags(not kinds & {"string", "categorical", "dict", "3darray"}, text, given["allow_nan"])
    except Exception:
        return _Tags(numbers=False, text=False, nan=False)  # it cannot say, so nothing is taken for granted
    return None


def _is_numeric(part: Any) -> bool:
    # The imputer alone keeps quiet in its tags about having been fitted on strings.
    fitted = getattr(part, "_fit_dtype", None)
    return type(part).__name__ not in _NOT_NUMERIC and (fitted is None or np.dtype(fitted).kind in "biuf")


def _depends_on_others(part: Any) -> bool:
    # A dummy that guesses goes on from its last guess; gradient boosting starts from one that does not.
    guesses = type(part).__name__ == "DummyClassifier" and part.strategy in {"stratified", "uniform"}
    return guesses or type(part).__name__ in _DEPENDENT


def _picks_by_name(transformer: Any) -> bool:
    if type(transformer).__name__ != "ColumnTransformer":
        return False
    picked = [columns for _, _, columns in getattr(transformer, "transformers_", ())]
    return any(isinstance(one, str) for columns in picked for one in np.atleast_1d(np.array(columns, object)))


def _is_in(part: Any, modules: Iterable[str]) -> bool:
    return any(_within(type(part), module) for module in modules)


def _within(kind: type, module: str) -> bool:
    return f"{kind.__module__}.".startswith(module)


# Loading.


def _check_class(model: Any, file: str, packages: bool) -> None:
    if any("sklearn" in kind.__module__ for kind in type(model).__mro__) or (packages and _predicts(model)):
        return
    name = f"{type(model).__module__}.{type(model).__name__}"
    if root(model) == "xgboost":
        raise LoadFailed(f"{file} holds a {name}: set the framework to XGBOOST, or leave it out.")
    raise LoadFailed(
        f"{file} holds a {name}, which is not a scikit-learn estimator. "
        "Save the fitted estimator or pipeline itself, or serve it with a custom prediction routine."
    )


def _check_usable(model: Any, file: str) -> None:
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


def _one_job(inside: Iterable[Any]) -> None:
    """No joblib workers: they cost more than a prediction, and a node has one compute thread."""
    for part in inside:
        if getattr(part, "__dict__", {}).get("n_jobs"):
            part.n_jobs = 1
        if root(part) == "xgboost" and hasattr(part, "set_param"):
            part.set_param({"nthread": 1})


class _Thread:
    """What has to be set in every thread that predicts: once, when another one does.

    BLAS and OpenMP are kept to a number of threads. scikit-learn is spared its search for NaN and
    infinities, a fifth of a small prediction, where `_is_plainly_finite` looks instead.
    """

    def __init__(self, threads: int, *, assume_finite: bool) -> None:
        self._limit = ThreadLimit(threads)
        self._assume_finite = assume_finite
        self._prepared = 0
        self.prepare()

    def prepare(self) -> None:
        """Make the calling thread ready to predict."""
        if self._prepared != threading.get_ident():
            self._prepared = threading.get_ident()
            self._limit.apply()
            set_config(assume_finite=self._assume_finite)


# Predicting.


# What is larger becomes infinite in the float32 that trees compute with.
_LARGEST = float(np.finfo(np.float32).max)


def _is_plainly_finite(inputs: Any) -> bool:
    """Whether the library's own search for NaN and infinities would find none, in a cheaper way."""
    if not isinstance(inputs, np.ndarray) or not inputs.size:
        return False
    return inputs.dtype.kind in "iu" or bool(np.abs(inputs).max() <= _LARGEST)


def _check_text(instances: Sequence[Any]) -> None:
    for index, instance in enumerate(instances):
        if not isinstance(instance, str):
            raise InvalidInputs(
                f"Instance {index} is {kind(instance)}; the model takes one string per instance."
            )


def _explained(error: Exception) -> InvalidInputs | ModelFailed:
    """The client's fault if a library complains of a value, the model's in every other case."""
    about_values = isinstance(error, ValueError | TypeError) and not isinstance(error, NotFittedError)
    if about_values and not _passed_user_code(error):
        return InvalidInputs(str(error))
    return ModelFailed(f"Exception during sklearn prediction: {type(error).__name__}: {error}")


def _passed_user_code(error: Exception) -> bool:
    frames_ = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(str(frame.f_globals.get("__name__")).partition(".")[0] not in _KNOWN for frame in frames_)


def _checked(result: Any, rows: int) -> Batch:
    if not isinstance(result, np.ndarray | list):
        raise InvalidOutputs(f"predict must return an array or a list, not {type(result).__name__}.")
    count = len(result) if isinstance(result, list) or result.ndim else 0
    if count != rows:
        raise InvalidOutputs(f"predict returned {count} predictions for {rows} instances.")
    return result
