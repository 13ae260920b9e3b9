"""scikit-learn models: estimators and pipelines in `model.joblib` or `model.pkl`.

The answer is that of `estimator.predict(instances)`, to the bit. What the estimator is made of decides
how much may be done for it: known numeric steps get one dense array and may share calls, anything else
gets the plain rows of the request, alone.
"""

from __future__ import annotations

import threading
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import pandas as pd
from sklearn import config_context, set_config
from sklearn.exceptions import NotFittedError

from serving.errors import InvalidInputs, ModelFailed, describe_exception
from serving.predictor.program import methods_of
from serving.runtimes import Array, Form, Rows, Runtime, Source, frames, pickles, sklearn_schema
from serving.runtimes.acceleration import MOST_FEATURES, Offer, Predict
from serving.runtimes.acceleration import sklearn as acceleration
from serving.runtimes.acceleration.sklearn.probing import probes
from serving.runtimes.arguments import accepted, checked
from serving.runtimes.conversion import kind
from serving.runtimes.describing import PREDICTIONS, first, labels, outcome, show
from serving.runtimes.detect import find_model
from serving.runtimes.finite import is_finite
from serving.runtimes.instances import Batch
from serving.runtimes.methods import OF_CLASSES, PREDICT, Asked, chosen, describe_methods, rows
from serving.runtimes.packages import KNOWN
from serving.runtimes.pickles import root
from serving.runtimes.sklearn_anatomy import Anatomy, last_step, takes_nan
from serving.runtimes.sklearn_checks import check_class, check_meaning, check_usable, one_job
from serving.runtimes.threads import ThreadLimit
from serving.schema import DEFAULT_SIGNATURE, ModelSchema, ModelSignature

# What values of requests are. A step that misses an attribute of one expected something else.
_OF_JSON = (type(None), bool, int, float, str, list, dict)


class SklearnRuntime:
    """A scikit-learn estimator; `warnings` is what was said while it was loaded."""

    framework = "SCIKIT_LEARN"

    def __init__(self, loaded: pickles.Loaded, file: Path, threads: int, method: str = PREDICT) -> None:
        self.method = method
        self.methods = tuple(methods_of(loaded.model))
        self._file = file
        self.warnings = loaded.warnings
        self._estimator = loaded.model
        self._anatomy = anatomy = Anatomy(loaded.model, loaded.parts)
        self.mergeable = anatomy.independent
        self.exact = anatomy.exact if method == PREDICT else not anatomy.builtin
        self._form = (
            Array(anatomy.width, anatomy.nullable, bool(anatomy.names)) if anatomy.numeric else Rows()
        )
        last = last_step(loaded.model)
        self._owner = type(last).__name__
        self._known = {
            name: accepted(getattr(last, name, None) or getattr(loaded.model, name)) for name in self.methods
        }
        # Only for one estimator alone: between the steps of a pipeline values can become infinite.
        self._may_assume_finite = anatomy.numeric and len(anatomy.tagged) == 1
        self._thread = _Thread(threads, assume_finite=self._may_assume_finite)
        self._nullable = takes_nan(acceleration.parts(loaded.model)[1])
        self._missing = anatomy.numeric and acceleration.takes_missing(loaded.model, missing=self._nullable)
        self._faster: Predict | None = None

    def form(self, parameters: Mapping[str, Any]) -> Form:
        """One array for models of known numeric steps, plain rows for all others."""
        self._asked(parameters)
        return self._form

    def predict(self, instances: Any, /, **parameters: Any) -> Batch:
        """What `estimator.predict` says. Objects become a data frame, where the model was trained on one."""
        if self._faster is not None and not parameters and self._is_plain(instances):
            return self._faster(instances)
        return self.plain(instances, **parameters)

    def plain(self, instances: Any, /, **parameters: Any) -> Batch:
        """As `predict`, by the library alone."""
        asked, arguments = self._asked(parameters)
        inputs = self._inputs(instances)
        self._thread.prepare()
        if isinstance(asked, tuple):
            return {name: self._answer(self._method_of(name), inputs, arguments) for name in asked}
        answer: Batch = self._answer(asked, inputs, arguments)
        return answer

    def _answer(self, method: str, inputs: Any, arguments: Mapping[str, Any]) -> Any:
        """What a method of the estimator says, a row for each instance."""
        ask = getattr(self._estimator, method)
        try:
            if self._may_assume_finite and not is_finite(inputs):
                with config_context(assume_finite=False):
                    result = ask(inputs, **arguments)
            else:
                result = ask(inputs, **arguments)
        except Exception as error:
            raise _explained(error, inputs) from error
        return rows(result, len(inputs), method)

    def _asked(self, parameters: Mapping[str, Any]) -> tuple[Asked, dict[str, Any]]:
        """What is asked, and with which arguments. Raises InvalidInputs."""
        if not parameters:
            return self.method, {}
        asked, rest = chosen(parameters, self.method, self.methods, self._owner)
        arguments: dict[str, Any] = {}
        for name in asked if isinstance(asked, tuple) else (asked,):
            method = self._method_of(name)
            arguments = checked(rest, self._known[method], self._owner, method)
        return asked, arguments

    def _method_of(self, output: str) -> str:
        return self.method if output == PREDICTIONS else output

    def offers(self) -> Sequence[Offer]:
        """What is known to be faster for estimators that take numbers and no code of a user."""
        anatomy = self._anatomy
        if self.method != PREDICT or not anatomy.numeric or not anatomy.width:
            return ()
        # Steps may make many columns of few.
        inner = getattr(acceleration.parts(self._estimator)[1], "n_features_in_", 0)
        if not isinstance(inner, int | np.integer) or max(anatomy.width, inner) > MOST_FEATURES:
            return ()
        return acceleration.offers(self._estimator, missing=self._nullable)

    def probes(self) -> Sequence[Batch]:
        """Rows around the thresholds and borders of the model, and others."""
        width = self._anatomy.width
        return probes(self._estimator, width, missing=self._missing) if width else ()

    def use(self, faster: Predict | None) -> None:
        """Ask this for finite rows of the model's width."""
        self._faster = faster

    def samples(self, count: int) -> Batch | None:
        """Numbers in the width of the model; None where the rows hold more than numbers."""
        width = self._anatomy.width
        return frames.made_up(count, width) if self._anatomy.numeric and width else None

    def warmup_requests(self) -> tuple[()]:
        """None: scikit-learn models carry no recorded requests."""
        return ()

    def schema(self, examples: Sequence[Any] = ()) -> ModelSchema:
        """Columns by name where it was fitted with names, labels where it answers them."""
        anatomy = self._anatomy
        shown = show(self, first(examples, self.instances))
        classes = labels(getattr(last_step(self._estimator), "classes_", None))
        found = outcome(shown, classes if self.method in OF_CLASSES else (), of_labels=self.method == PREDICT)
        return ModelSchema(
            "sklearn",
            {DEFAULT_SIGNATURE: ModelSignature(sklearn_schema.inputs(anatomy), (found,))},
            method=self.method,
            methods=describe_methods(self, self, shown if anatomy.builtin else None, classes),
            strict=anatomy.builtin and (anatomy.text or anatomy.width is not None),
            example=shown and shown.instance,
            answer=shown and shown.answer,
        )

    def _is_plain(self, inputs: Any) -> bool:
        """Whether the library's checks would find nothing wrong with the rows."""
        return (
            is_finite(inputs, missing=self._missing)
            and inputs.ndim == 2
            and inputs.shape[1] == self._anatomy.width
            and inputs.dtype.char in "dl"  # as the form has it
        )

    def instances(self) -> Iterator[Any]:
        """Made-up instances, the likeliest first."""
        return sklearn_schema.instances(self._anatomy)

    def advice(self) -> str:
        """Which version has saved it, and which is here."""
        return pickles.advice(self._file)

    def _inputs(self, instances: Any) -> Any:
        if isinstance(instances, np.ndarray):
            return instances
        anatomy = self._anatomy
        if anatomy.text:
            _check_text(instances)
        elif anatomy.by_name or (frames.are_objects(instances) and (anatomy.names or anatomy.numeric)):
            return frames.frame(instances, anatomy.names)
        return instances


def load(source: Source) -> Runtime:
    """Load `model.joblib` or `model.pkl`. Raises LoadFailed with a sentence that says what to do."""
    file = find_model(source.model_dir, "SCIKIT_LEARN")
    loaded = pickles.load(file, source.packages)
    model, method = loaded.model, source.method or PREDICT
    if root(model) == "xgboost" and hasattr(model, "get_booster"):
        # The contract takes XGBClassifier for scikit-learn too: its module is called xgboost.sklearn.
        from serving.runtimes.xgboost import EstimatorRuntime  # noqa: PLC0415  xgboost only where it is served

        return EstimatorRuntime(model, loaded.warnings, source.threads, source.method or PREDICT)
    check_class(model, file.name, bool(source.packages))
    check_usable(model, file.name, method)
    check_meaning(loaded.parts, file)
    one_job(loaded.parts)
    # Rows without names are a legal way to ask a model that was fitted with names.
    warnings.filterwarnings("ignore", "X does not have valid feature names", UserWarning)
    return SklearnRuntime(loaded, file, source.threads, method)


class _Thread:
    """What has to be set in every thread that predicts: once, when another one does.

    BLAS and OpenMP are kept to a number of threads. scikit-learn is spared its search for NaN and
    infinities, a fifth of a small prediction, where `is_finite` looks instead.
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


def _check_text(instances: Sequence[Any]) -> None:
    for index, instance in enumerate(instances):
        if not isinstance(instance, str):
            raise InvalidInputs(
                f"Instance {index} is {kind(instance)}; the model takes one string per instance."
            )


def _explained(error: Exception, instances: Any) -> InvalidInputs | ModelFailed:
    """The client's fault if a library complains of a value, the model's in every other case."""
    about_values = isinstance(error, ValueError | TypeError) and not isinstance(error, NotFittedError)
    if about_values and not _passed_user_code(error):
        return InvalidInputs(str(error))
    if _lacks_attribute(error, instances) and not _passed_user_code(error):
        return InvalidInputs(f"A value of the instances is {kind(error.obj)}; the model takes another there.")
    return ModelFailed(f"Exception during sklearn prediction: {describe_exception(error)}")


def _lacks_attribute(error: Exception, instances: Any) -> TypeGuard[AttributeError]:
    """Whether it is a value of the instances that lacks an attribute, and not a part of the model."""
    if not isinstance(error, AttributeError) or isinstance(error, NotFittedError) or error.name is None:
        return False
    return type(error.obj) in _OF_JSON and _contains(instances, error.obj)


def _contains(value: Any, wanted: Any) -> bool:
    """Whether a value is among instances, at any depth."""
    if type(value) is type(wanted) and value == wanted:
        return True
    if isinstance(value, pd.DataFrame):
        value = value.to_numpy(object).tolist()
    if isinstance(value, list):
        return any(_contains(element, wanted) for element in value)
    return isinstance(value, dict) and any(_contains(element, wanted) for element in value.values())


def _passed_user_code(error: Exception) -> bool:
    frames_ = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(str(frame.f_globals.get("__name__")).partition(".")[0] not in KNOWN for frame in frames_)
