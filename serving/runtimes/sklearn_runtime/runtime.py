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

from serving.acceleration.candidates import MAX_ACCELERATED_FEATURES, Candidate, Predict
from serving.acceleration.sklearn import candidates
from serving.acceleration.sklearn.verification_rows import make_verification_rows
from serving.errors import InvalidInputs, ModelFailed, describe_exception
from serving.model_schema import DEFAULT_SIGNATURE, ModelSchema, ModelSignature
from serving.predictor.program import list_methods
from serving.runtimes import (
    ArrayFormat,
    InputFormat,
    LoadSpec,
    RowsFormat,
    Runtime,
    feature_rows,
    pickle_loading,
)
from serving.runtimes.framework_detection import find_model_file
from serving.runtimes.input_conversion import describe_json_type
from serving.runtimes.instance_batch import Batch, is_finite_float32
from serving.runtimes.pickle_loading import root_package
from serving.runtimes.prediction_methods import (
    CLASS_METHODS,
    PREDICT_METHOD,
    MethodSelection,
    check_arguments,
    infer_method_outputs,
    list_arguments,
    read_requested_methods,
    to_prediction_rows,
)
from serving.runtimes.schema_inference import (
    PREDICTIONS,
    chain_lazily,
    find_answered_example,
    infer_output,
    list_labels,
)
from serving.runtimes.sklearn_runtime import feature_schema
from serving.runtimes.sklearn_runtime.estimator_checks import (
    check_class,
    check_compatibility,
    check_usable,
    force_single_job,
)
from serving.runtimes.sklearn_runtime.estimator_inspection import (
    EstimatorInspection,
    find_last_step,
    takes_nan,
)
from serving.runtimes.sklearn_runtime.framework import FRAMEWORK
from serving.runtimes.thread_limit import ThreadLimit
from serving.runtimes.user_packages import KNOWN_PACKAGES

# What values of requests are. A step that misses an attribute of one expected something else.
_JSON_TYPES = (type(None), bool, int, float, str, list, dict)


class SklearnRuntime:
    """A scikit-learn estimator; `warnings` is what was said while it was loaded."""

    framework = FRAMEWORK

    def __init__(
        self, loaded: pickle_loading.LoadedPickle, file: Path, threads: int, method: str = PREDICT_METHOD
    ) -> None:
        self.method = method
        self.methods = tuple(list_methods(loaded.model))
        self._file = file
        self.warnings = loaded.warnings
        self._estimator = loaded.model
        self._inspection = inspection = EstimatorInspection(loaded.model, loaded.parts)
        self.mergeable = inspection.has_independent_rows
        self.exact = inspection.exact if method == PREDICT_METHOD else not inspection.is_library_code
        self._input_format = (
            ArrayFormat(inspection.width, inspection.takes_nan, bool(inspection.feature_names))
            if inspection.takes_numbers
            else RowsFormat()
        )
        last = find_last_step(loaded.model)
        self._owner = type(last).__name__
        self._known_arguments = {
            name: list_arguments(getattr(last, name, None) or getattr(loaded.model, name))
            for name in self.methods
        }
        # Only for one estimator alone: between the steps of a pipeline values can become infinite.
        self._may_assume_finite = inspection.takes_numbers and len(inspection.part_tags) == 1
        self._thread_setup = _ThreadSetup(threads, assume_finite=self._may_assume_finite)
        self._last_step_takes_nan = takes_nan(candidates.split_pipeline(loaded.model)[1])
        self._fast_path_takes_nan = inspection.takes_numbers and candidates.accepts_nan(
            loaded.model, takes_nan=self._last_step_takes_nan
        )
        self._fast_path: Predict | None = None

    def input_format(self, parameters: Mapping[str, Any]) -> InputFormat:
        """One array for models of known numeric steps, plain rows for all others."""
        self._resolve_method(parameters)
        return self._input_format

    def predict(self, instances: Any, /, **parameters: Any) -> Batch:
        """What `estimator.predict` says. Objects become a data frame, where the model was trained on one."""
        if self._fast_path is not None and not parameters and self._fits_fast_path(instances):
            return self._fast_path(instances)
        return self.predict_reference(instances, **parameters)

    def predict_reference(self, instances: Any, /, **parameters: Any) -> Batch:
        """As `predict`, by the library alone."""
        asked, arguments = self._resolve_method(parameters)
        inputs = self._prepare_inputs(instances)
        self._thread_setup.prepare()
        if isinstance(asked, tuple):
            return {
                name: self._call_method(self._find_output_method(name), inputs, arguments) for name in asked
            }
        answer: Batch = self._call_method(asked, inputs, arguments)
        return answer

    def _call_method(self, method: str, inputs: Any, arguments: Mapping[str, Any]) -> Any:
        """What a method of the estimator says, a row for each instance."""
        call = getattr(self._estimator, method)
        try:
            if self._may_assume_finite and not is_finite_float32(inputs):
                with config_context(assume_finite=False):
                    result = call(inputs, **arguments)
            else:
                result = call(inputs, **arguments)
        except Exception as error:
            raise _to_serving_error(error, inputs) from error
        return to_prediction_rows(result, len(inputs), method)

    def _resolve_method(self, parameters: Mapping[str, Any]) -> tuple[MethodSelection, dict[str, Any]]:
        """What is asked, and with which arguments. Raises InvalidInputs."""
        if not parameters:
            return self.method, {}
        asked, rest = read_requested_methods(parameters, self.method, self.methods, self._owner)
        arguments: dict[str, Any] = {}
        for name in asked if isinstance(asked, tuple) else (asked,):
            method = self._find_output_method(name)
            arguments = check_arguments(rest, self._known_arguments[method], self._owner, method)
        return asked, arguments

    def _find_output_method(self, output: str) -> str:
        return self.method if output == PREDICTIONS else output

    def list_candidates(self) -> Sequence[Candidate]:
        """What is known to be faster for estimators that take numbers and no code of a user."""
        inspection = self._inspection
        if self.method != PREDICT_METHOD or not inspection.takes_numbers or not inspection.width:
            return ()
        # Steps may make many columns of few.
        inner = getattr(candidates.split_pipeline(self._estimator)[1], "n_features_in_", 0)
        if not isinstance(inner, int | np.integer) or max(inspection.width, inner) > MAX_ACCELERATED_FEATURES:
            return ()
        return candidates.list_candidates(self._estimator, takes_nan=self._last_step_takes_nan)

    def make_verification_rows(self) -> Sequence[Batch]:
        """Rows around the thresholds and borders of the model, and others."""
        width = self._inspection.width
        return (
            make_verification_rows(self._estimator, width, allow_nan=self._fast_path_takes_nan)
            if width
            else ()
        )

    def set_fast_path(self, fast_path: Predict | None) -> None:
        """Ask this for finite rows of the model's width."""
        self._fast_path = fast_path

    def make_synthetic_rows(self, count: int) -> Batch | None:
        """Numbers in the width of the model; None where the rows hold more than numbers."""
        width = self._inspection.width
        return (
            feature_rows.make_numeric_rows(count, width) if self._inspection.takes_numbers and width else None
        )

    def warmup_requests(self) -> tuple[()]:
        """None: scikit-learn models carry no recorded requests."""
        return ()

    def infer_schema(self, examples: Sequence[Any] = ()) -> ModelSchema:
        """Columns by name where it was fitted with names, labels where it answers them."""
        inspection = self._inspection
        answered = find_answered_example(self, chain_lazily(examples, self.make_example_instances))
        classes = list_labels(getattr(find_last_step(self._estimator), "classes_", None))
        found = infer_output(
            answered,
            classes if self.method in CLASS_METHODS else (),
            answers_labels=self.method == PREDICT_METHOD,
        )
        return ModelSchema(
            FRAMEWORK.platform,
            {DEFAULT_SIGNATURE: ModelSignature(feature_schema.infer_inputs(inspection), (found,))},
            method=self.method,
            methods=infer_method_outputs(
                self, self, answered if inspection.is_library_code else None, classes
            ),
            strict=inspection.is_library_code and (inspection.takes_text or inspection.width is not None),
            example=answered and answered.instance,
            answer=answered and answered.answer,
        )

    def _fits_fast_path(self, inputs: Any) -> bool:
        """Whether the library's checks would find nothing wrong with the rows."""
        return (
            is_finite_float32(inputs, allow_nan=self._fast_path_takes_nan)
            and inputs.ndim == 2
            and inputs.shape[1] == self._inspection.width
            and inputs.dtype.char in "dl"  # as the form has it
        )

    def make_example_instances(self) -> Iterator[Any]:
        """Made-up instances, the likeliest first."""
        return feature_schema.make_example_instances(self._inspection)

    def describe_versions(self) -> str:
        """Which version has saved it, and which is here."""
        return pickle_loading.describe_saved_version(self._file)

    def _prepare_inputs(self, instances: Any) -> Any:
        if isinstance(instances, np.ndarray):
            return instances
        inspection = self._inspection
        if inspection.takes_text:
            _require_strings(instances)
        elif inspection.needs_names or (
            feature_rows.starts_with_object(instances)
            and (inspection.feature_names or inspection.takes_numbers)
        ):
            return feature_rows.build_data_frame(instances, inspection.feature_names)
        return instances


def load_model(spec: LoadSpec) -> Runtime:
    """Load `model.joblib` or `model.pkl`. Raises LoadFailed with a sentence that says what to do."""
    file = find_model_file(spec.model_dir, FRAMEWORK)
    loaded = pickle_loading.load_pickle(file, spec.packages)
    model, method = loaded.model, spec.method or PREDICT_METHOD
    if root_package(model) == "xgboost" and hasattr(model, "get_booster"):
        # The contract takes XGBClassifier for scikit-learn too: its module is called xgboost.sklearn.
        # XGBoost is imported only where such a model is served.
        from serving.runtimes.xgboost_runtime.runtime import XgbModelRuntime  # noqa: PLC0415

        return XgbModelRuntime(model, loaded.warnings, spec.threads, spec.method or PREDICT_METHOD)
    check_class(model, file.name, bool(spec.packages))
    check_usable(model, file.name, method)
    check_compatibility(loaded.parts, file)
    force_single_job(loaded.parts)
    # Rows without names are a legal way to ask a model that was fitted with names.
    warnings.filterwarnings("ignore", "X does not have valid feature names", UserWarning)
    return SklearnRuntime(loaded, file, spec.threads, method)


class _ThreadSetup:
    """What has to be set in every thread that predicts: once, when another one does.

    BLAS and OpenMP are kept to a number of threads. scikit-learn is spared its search for NaN and
    infinities, a fifth of a small prediction, where `is_finite_float32` looks instead.
    """

    def __init__(self, threads: int, *, assume_finite: bool) -> None:
        self._limit = ThreadLimit(threads)
        self._assume_finite = assume_finite
        self._prepared_thread = 0
        self.prepare()

    def prepare(self) -> None:
        """Make the calling thread ready to predict."""
        if self._prepared_thread != threading.get_ident():
            self._prepared_thread = threading.get_ident()
            self._limit.apply()
            set_config(assume_finite=self._assume_finite)


# Predicting.


def _require_strings(instances: Sequence[Any]) -> None:
    for index, instance in enumerate(instances):
        if not isinstance(instance, str):
            raise InvalidInputs(
                f"Instance {index} is {describe_json_type(instance)}; "
                "the model takes one string per instance."
            )


def _to_serving_error(error: Exception, instances: Any) -> InvalidInputs | ModelFailed:
    """The client's fault if a library complains of a value, the model's in every other case."""
    about_values = isinstance(error, ValueError | TypeError) and not isinstance(error, NotFittedError)
    if about_values and not _passed_user_code(error):
        return InvalidInputs(str(error))
    if _lacks_attribute(error, instances) and not _passed_user_code(error):
        return InvalidInputs(
            f"A value of the instances is {describe_json_type(error.obj)}; the model takes another there."
        )
    return ModelFailed(f"Exception during sklearn prediction: {describe_exception(error)}")


def _lacks_attribute(error: Exception, instances: Any) -> TypeGuard[AttributeError]:
    """Whether it is a value of the instances that lacks an attribute, and not a part of the model."""
    if not isinstance(error, AttributeError) or isinstance(error, NotFittedError) or error.name is None:
        return False
    return type(error.obj) in _JSON_TYPES and _contains_value(instances, error.obj)


def _contains_value(value: Any, wanted: Any) -> bool:
    """Whether a value is among instances, at any depth."""
    if type(value) is type(wanted) and value == wanted:
        return True
    if isinstance(value, pd.DataFrame):
        value = value.to_numpy(object).tolist()
    if isinstance(value, list):
        return any(_contains_value(element, wanted) for element in value)
    return isinstance(value, dict) and any(_contains_value(element, wanted) for element in value.values())


def _passed_user_code(error: Exception) -> bool:
    frames_ = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(
        str(frame.f_globals.get("__name__")).partition(".")[0] not in KNOWN_PACKAGES for frame in frames_
    )
