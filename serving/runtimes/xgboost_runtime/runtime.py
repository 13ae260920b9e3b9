"""XGBoost models: a Booster in `model.bst`, or an XGBoost object in `model.joblib` or `model.pkl`.

A Booster is asked as `booster.predict(DMatrix(np.array(instances)))`. An object of XGBoost's scikit-learn
interface (XGBClassifier and its relatives) is asked through its own `predict`, so that labels come out of a
classifier: the contract calls `predict` of whatever was saved, and that object's takes no DMatrix.

`model.bst` may be in any format XGBoost has written: the binary one of 1.x and 2.x, UBJSON, JSON, or a
pickle, since people have saved all of them under this name. The content decides, not the name.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xgboost as xgb
from numpy.typing import NDArray
from sklearn.base import is_classifier
from sklearn.exceptions import NotFittedError

from serving.acceleration.candidates import MAX_ACCELERATED_FEATURES, Candidate, Predict
from serving.acceleration.xgboost import candidates, verification_rows
from serving.errors import InvalidInputs, InvalidOutputs, LoadFailed, ModelFailed
from serving.model_schema import DEFAULT_SIGNATURE, ModelSchema, ModelSignature, TensorSpec
from serving.predictor.program import list_methods, missing_method_text
from serving.runtimes import (
    ArrayFormat,
    InputFormat,
    LoadSpec,
    RowsFormat,
    Runtime,
    feature_rows,
    pickle_loading,
)
from serving.runtimes.datatypes import BYTES
from serving.runtimes.framework_detection import find_model_file, read_first_class
from serving.runtimes.input_conversion import to_regular_array
from serving.runtimes.instance_batch import Batch, is_finite_float32
from serving.runtimes.pickle_loading import root_package
from serving.runtimes.prediction_methods import (
    PREDICT_METHOD,
    MethodSelection,
    check_arguments,
    infer_method_outputs,
    list_arguments,
    read_requested_methods,
)
from serving.runtimes.schema_inference import (
    INSTANCES,
    PREDICTIONS,
    chain_lazily,
    find_answered_example,
    infer_output,
    list_labels,
    round_for_display,
)
from serving.runtimes.xgboost_runtime.categorical_features import encode_categories, read_categories
from serving.runtimes.xgboost_runtime.framework import FRAMEWORK, PICKLE_FILES
from serving.runtimes.xgboost_runtime.model_format import XgboostFormat, detect_format, to_readable_model

# The width is checked here and names are put in order here, so that plain rows can ask a model with names.
_SERVER_ARGUMENTS = ("validate_features",)
# As much of a file as tells its format.
_HEAD_BYTES = 4096
# The classes whose `predict` we know to be nothing but the booster's, with labels made of it in classifiers.
_ESTIMATOR_CLASSES = (
    xgb.XGBClassifier,
    xgb.XGBRegressor,
    xgb.XGBRanker,
    xgb.XGBRFClassifier,
    xgb.XGBRFRegressor,
)
_FAST_PATH_DTYPES = (np.dtype(np.float64), np.dtype(np.int64))


class BoosterRuntime:
    """A Booster, and what its scikit-learn sibling shares with it.

    Rows are independent in every booster. Trees give a row the same bits in any company; gblinear's
    products need not.
    """

    framework = FRAMEWORK
    mergeable = True
    method = PREDICT_METHOD
    methods: Sequence[str] = (PREDICT_METHOD,)

    def __init__(
        self, booster: Any, warnings: tuple[str, ...], threads: int, rounds: tuple[int, int] = (0, 0)
    ) -> None:
        booster.set_param({"nthread": threads})
        if not _has_rounds(booster):
            raise LoadFailed(
                "The model has no boosting rounds, so it always predicts its base score, which differs in "
                "XGBoost 3.1 and later. Train it for at least one round."
            )
        self.warnings = warnings
        self._iteration_range = rounds
        self._booster_type = _read_booster_type(booster)
        self.exact = self._booster_type != "gblinear"
        self._booster = booster
        self._threads = threads
        self._feature_names: list[str] = booster.feature_names or []
        self._width: int | None = booster.num_features() or None
        if self._width is not None and self._width > feature_rows.MAX_FEATURES:
            raise LoadFailed(
                f"The model says that its rows have {self._width} features; there can be up to "
                f"{feature_rows.MAX_FEATURES}. The file is damaged, or the model was trained on columns that "
                "should be hashed into fewer."
            )
        self._owner = "a Booster"
        self._known_arguments = {PREDICT_METHOD: list_arguments(booster.predict, excluding=_SERVER_ARGUMENTS)}
        self._categories = read_categories(booster)
        texts = any(feature.codes for feature in self._categories.values())
        self._input_format: InputFormat = (
            RowsFormat()
            if texts
            else ArrayFormat(self._width, nullable=True, allows_objects=bool(self._feature_names))
        )
        self._fast_path: Predict | None = None

    def input_format(self, parameters: Mapping[str, Any]) -> InputFormat:
        """One array of the model's width, in which null is a missing value; rows if categories are texts."""
        if parameters:
            self._resolve_method(parameters)
        return self._input_format

    def predict(self, instances: Any, /, **parameters: Any) -> Batch:
        """What the model's own `predict` says, in the shape the library gives it."""
        if self._fast_path is not None and not parameters and self._fits_fast_path(instances):
            return self._fast_path(instances)
        asked, arguments = self._resolve_method(parameters)
        array = self._to_array(instances)
        if isinstance(asked, tuple):
            return {
                name: self._call_method(self._find_output_method(name), array, arguments) for name in asked
            }
        answer: Batch = self._call_method(asked, array, arguments)
        return answer

    def _call_method(self, method: str, array: NDArray[Any], arguments: dict[str, Any]) -> Any:
        """What a method of the model says, a row for each instance."""
        try:
            result = self._predict_array(array, arguments, method)
        except InvalidInputs:
            raise
        except Exception as error:
            # The rows have been checked: what is still wrong is a parameter of the request, or the model.
            blame = InvalidInputs if arguments else ModelFailed
            raise blame(f"Exception during xgboost prediction: {_clean_message(error)}") from error
        return _check_predictions(result, len(array))

    def list_candidates(self) -> Sequence[Candidate]:
        """The call in place, and treelite's interpreter; none for linear boosters and very wide ones."""
        asked = self._booster_predict_spec() if self.method == PREDICT_METHOD else None
        if asked is None or asked.width > MAX_ACCELERATED_FEATURES or self._booster_type == "gblinear":
            return ()
        return candidates.list_candidates(asked)

    def make_verification_rows(self) -> Sequence[Batch]:
        """Rows around the thresholds of the trees."""
        return verification_rows.make_verification_rows(
            candidates.read_trees(self._booster), self._width or 0
        )

    def predict_reference(self, rows: Any, /) -> Batch:
        """The library's own answer."""
        return _check_predictions(self._predict_array(rows, {}, self.method), len(rows))

    def set_fast_path(self, fast_path: Predict | None) -> None:
        """Have `predict` ask this for ordinary rows."""
        self._fast_path = fast_path

    def make_synthetic_rows(self, count: int) -> Batch | None:
        """Numbers in the width of the model, None if it does not say."""
        return feature_rows.make_numeric_rows(count, self._width) if self._width else None

    def warmup_requests(self) -> tuple[()]:
        """None: XGBoost models carry no recorded requests."""
        return ()

    def infer_schema(self, examples: Sequence[Any] = ()) -> ModelSchema:
        """Columns by name where it was trained with names, labels where it answers them or scores each."""
        answered = find_answered_example(self, chain_lazily(examples, self.make_example_instances))
        classes = self._list_classes()
        found = infer_output(answered, classes, answers_labels=self.method == PREDICT_METHOD)
        return ModelSchema(
            FRAMEWORK.platform,
            {DEFAULT_SIGNATURE: ModelSignature(self._input_tensors(), (found,))},
            method=self.method,
            methods=infer_method_outputs(self, self, answered, classes),
            example=answered and answered.instance,
            answer=answered and answered.answer,
        )

    def describe_versions(self) -> str:
        """Which XGBoost computes it."""
        return f"This server has xgboost {xgb.__version__}."

    def _input_tensors(self) -> tuple[TensorSpec, ...]:
        if self._feature_names:
            return tuple(self._column_tensor(place, name) for place, name in enumerate(self._feature_names))
        return (TensorSpec(INSTANCES, "FP64", (-1, self._width or -1)),)

    def _column_tensor(self, place: int, name: str) -> TensorSpec:
        """A feature as an input of its own: numbers, codes, or the texts that are known."""
        feature = self._categories.get(place)
        if feature is None:
            return TensorSpec(name, "FP64", (-1,))
        return TensorSpec(name, BYTES if feature.texts else "INT64", (-1,), classes=feature.texts)

    def make_example_instances(self) -> Iterator[Any]:
        """A made-up instance, if the model says how wide one is."""
        if self._width:
            row = round_for_display(feature_rows.make_numeric_rows(1, self._width))[0].tolist()
            for place, feature in self._categories.items():
                row[place] = feature.texts[0] if feature.texts else 0
            yield dict(zip(self._feature_names, row, strict=True)) if self._feature_names else row

    def _list_classes(self) -> tuple[Any, ...]:
        """Of a booster for several classes their numbers: it answers one of them, or a score for each."""
        learner = json.loads(self._booster.save_config())["learner"]
        several = str(learner["objective"]["name"]).startswith("multi:")
        return list_labels(np.arange(int(learner["learner_model_param"]["num_class"]))) if several else ()

    def _booster_predict_spec(self) -> candidates.BoosterPredictSpec | None:
        """What this runtime wants of the booster; None if only the object itself knows."""
        return (
            candidates.BoosterPredictSpec(self._booster, self._width, self._iteration_range)
            if self._width
            else None
        )

    def _fits_fast_path(self, rows: Any) -> bool:
        """Whether XGBoost accepts these rows without checks: numbers that a float32 holds, or NaN."""
        if not isinstance(rows, np.ndarray) or rows.ndim != 2 or rows.shape[1] != self._width:
            return False
        if not rows.flags.c_contiguous or rows.dtype not in _FAST_PATH_DTYPES:
            return False
        return is_finite_float32(rows, allow_nan=True)

    def _resolve_method(self, parameters: Mapping[str, Any]) -> tuple[MethodSelection, dict[str, Any]]:
        """What is asked, and with which arguments. Raises InvalidInputs."""
        asked, rest = read_requested_methods(parameters, self.method, self.methods, self._owner)
        given = {name: value for name, value in rest.items() if name not in _SERVER_ARGUMENTS}
        arguments: dict[str, Any] = {}
        for name in asked if isinstance(asked, tuple) else (asked,):
            method = self._find_output_method(name)
            arguments = check_arguments(given, self._known_arguments[method], self._owner, method)
        if isinstance(arguments.get("iteration_range"), list):
            arguments["iteration_range"] = tuple(arguments["iteration_range"])
        return asked, arguments

    def _find_output_method(self, output: str) -> str:
        return self.method if output == PREDICTIONS else output

    def _to_array(self, instances: Any) -> NDArray[Any]:
        is_named = feature_rows.starts_with_object(instances)
        if is_named:
            instances = feature_rows.order_features(instances, self._feature_names)
        if self._categories and isinstance(instances, list):
            instances = encode_categories(instances, self._feature_names, self._categories)
        array = to_regular_array(instances) if isinstance(instances, list) else np.asarray(instances)
        are_plain = array is not None and array.ndim == 2 and array.dtype.kind != "O"
        if (
            is_named
            and not are_plain
            and (nested := feature_rows.describe_nested_value(instances, self._feature_names))
        ):
            raise InvalidInputs(f"Could not initialize DMatrix from inputs: {nested}")
        if array is None:
            raise InvalidInputs("Could not initialize DMatrix from inputs: the instances differ in length.")
        if array.dtype.kind == "O" and any(value is None for value in array.flat):
            array = _to_floats(array)
        if array.ndim == 2 and self._width is not None and array.shape[1] != self._width:
            raise InvalidInputs(
                f"The instances have {array.shape[1]} values; the model expects {self._width}."
            )
        if array.dtype.kind not in "biuf" or array.ndim != 2:
            raise InvalidInputs(
                "Could not initialize DMatrix from inputs: each instance must be a list of numbers or nulls."
            )
        return array

    def _predict_array(self, array: NDArray[Any], arguments: dict[str, Any], _: str) -> Any:
        try:
            matrix = xgb.DMatrix(array, nthread=self._threads)
        except (ValueError, TypeError) as error:
            raise _matrix_error(error) from error
        asked = {"iteration_range": self._iteration_range, **arguments}
        return self._booster.predict(matrix, validate_features=False, **asked)


class XgbModelRuntime(BoosterRuntime):
    """An object of XGBoost's scikit-learn interface."""

    def __init__(
        self, estimator: Any, warnings: tuple[str, ...], threads: int, method: str = PREDICT_METHOD
    ) -> None:
        self.method = method
        self.methods = list_methods(estimator)
        if method not in self.methods:
            raise LoadFailed(missing_method_text("The file", estimator, method, self.methods))
        super().__init__(_get_booster(estimator), warnings, threads)
        if type(estimator) in _ESTIMATOR_CLASSES:
            for name, value in vars(type(estimator)()).items():  # parameters that later versions have brought
                vars(estimator).setdefault(name, value)
        estimator.n_jobs = threads
        self.exact = self.exact or (is_classifier(estimator) and method == PREDICT_METHOD)
        self._estimator = estimator
        self._owner = type(estimator).__name__
        self._known_arguments = {
            name: list_arguments(getattr(estimator, name), excluding=(*_SERVER_ARGUMENTS, "base_margin"))
            for name in self.methods
        }

    def _list_classes(self) -> tuple[Any, ...]:
        return list_labels(self._estimator.classes_) if is_classifier(self._estimator) else ()

    def _booster_predict_spec(self) -> candidates.BoosterPredictSpec | None:
        if type(self._estimator) not in _ESTIMATOR_CLASSES or not self._width:
            return None
        try:
            rounds = (0, self._estimator.best_iteration + 1)
        except AttributeError:  # trained without early stopping
            rounds = (0, 0)
        finish = _make_label_function(self._estimator) if is_classifier(self._estimator) else None
        return candidates.BoosterPredictSpec(
            self._booster, self._width, rounds, self._estimator.missing, finish
        )

    def _predict_array(self, array: NDArray[Any], arguments: dict[str, Any], method: str) -> Any:
        return getattr(self._estimator, method)(array, validate_features=False, **arguments)


def load_model(spec: LoadSpec) -> Runtime:
    """Load an XGBoost model. Raises LoadFailed with a sentence that says what to do."""
    file = find_model_file(spec.model_dir, FRAMEWORK)
    if _is_native_format(file):
        _check_booster_method(spec.method, file.name)
        return _load_native(file, spec.threads)
    loaded = pickle_loading.load_pickle(file, spec.packages)
    model = loaded.model
    if isinstance(model, xgb.Booster):
        _check_booster_method(spec.method, file.name)
        return BoosterRuntime(model, loaded.warnings, spec.threads)
    if isinstance(model, xgb.XGBModel):
        return XgbModelRuntime(model, loaded.warnings, spec.threads, spec.method or PREDICT_METHOD)
    name = f"{type(model).__module__}.{type(model).__name__}"
    hint = (
        "Set the framework to SCIKIT_LEARN, or leave it out."
        if root_package(model) == "sklearn"
        else (
            "Save the Booster or the XGBoost estimator itself, or serve it with a custom prediction routine."
        )
    )
    raise LoadFailed(f"{file.name} holds a {name}, which is not an XGBoost model. {hint}")


def _check_booster_method(method: str, file: str) -> None:
    if method not in ("", PREDICT_METHOD):
        raise LoadFailed(
            f"{file} holds a Booster, which has no {method} method. It has {PREDICT_METHOD} only."
        )


def _is_native_format(file: Path) -> bool:
    if file.name in PICKLE_FILES:
        with file.open("rb") as stream:
            return detect_format(stream.read(_HEAD_BYTES)) is not XgboostFormat.OTHER
    return not read_first_class(file)


def _load_native(file: Path, threads: int) -> BoosterRuntime:
    data = to_readable_model(file.read_bytes(), file.name)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            # From memory: given a path, XGBoost tells the format from the name.
            booster = xgb.Booster(model_file=bytearray(data))
        except (xgb.core.XGBoostError, ValueError, TypeError) as error:
            raise LoadFailed(
                f"{file.name} is not a model that XGBoost {xgb.__version__} can read: {_clean_message(error)}"
            ) from error
    return BoosterRuntime(
        booster, pickle_loading.format_warnings(caught), threads, _read_iteration_range(booster)
    )


def _read_iteration_range(booster: Any) -> tuple[int, int]:
    """Those that an estimator which saved this file would predict with (0, 0: all of them).

    A Booster that was trained with early stopping keeps all its trees in `predict`, an estimator does not.
    """
    best = booster.attr("best_iteration")
    if booster.attr("scikit_learn") is None or best is None or _read_booster_type(booster) == "gblinear":
        return 0, 0
    trees = booster.attr("best_ntree_limit")
    if trees is None:
        return 0, int(best) + 1
    # Until 1.5 a file did not tell how many trees make a round: those of a forest count as so many rounds.
    return 0, int(trees) // _count_parallel_trees(booster)


def _count_parallel_trees(booster: Any) -> int:
    model = json.loads(booster.save_config())["learner"]["gradient_booster"]
    return int(model.get("gbtree", model)["gbtree_model_param"]["num_parallel_tree"])


def _get_booster(estimator: Any) -> Any:
    try:
        return estimator.get_booster()
    except NotFittedError as error:
        name = type(estimator).__name__
        raise LoadFailed(f"The {name} is not fitted: call fit before saving it.") from error


def _has_rounds(booster: Any) -> bool:
    try:
        return bool(booster.num_boosted_rounds())
    except xgb.core.XGBoostError:  # what no version before 3.1 wrote about its rounds, for there were none
        return False


def _read_booster_type(booster: Any) -> str:
    config = json.loads(booster.save_config())
    return str(config["learner"]["gradient_booster"]["name"])


def _make_label_function(estimator: Any) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """What XGBClassifier makes of its booster's answer."""

    def to_labels(answer: NDArray[Any]) -> NDArray[Any]:
        if answer.ndim > 1 and estimator.n_classes_ != 2:
            return np.asarray(answer.argmax(axis=1))
        if answer.ndim > 1 and answer.shape[1] != 1:  # of several labels, those that hold
            return (answer > 0.5).astype(np.float64)
        if estimator.objective == "multi:softmax":
            return answer.astype(np.int32)
        return (answer > 0.5).reshape(len(answer)).astype(np.int64)

    return to_labels


def _to_floats(array: NDArray[Any]) -> NDArray[np.float64]:
    """Numbers and nulls, which are missing values."""
    try:
        return array.astype(np.float64)
    except (ValueError, TypeError) as error:
        raise _matrix_error(error) from error


def _matrix_error(error: Exception) -> InvalidInputs:
    return InvalidInputs(f"Could not initialize DMatrix from inputs: {_clean_message(error)}")


def _clean_message(error: Exception) -> str:
    """XGBoost's message without its clock, source lines and native stack."""
    text = str(error).partition("\nStack trace")[0].partition("\n\n")[0]
    return re.sub(r"^\[[\d:]+\] \S+:\d+: ", "", text).strip()


def _check_predictions(result: Any, rows: int) -> Batch:
    if not isinstance(result, np.ndarray) or not result.ndim:
        raise InvalidOutputs(f"predict must return an array, not {type(result).__name__}.")
    if len(result) != rows:
        raise InvalidOutputs(f"predict returned {len(result)} predictions for {rows} instances.")
    return result


def write_tiny_model(folder: Path) -> None:
    """Train a model of two features, on one thread, for the warm-up of spare nodes. Raises OSError."""
    rows = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 0.5], [1.0, 0.5]])
    matrix = xgb.DMatrix(rows, label=[0, 1, 0, 1], nthread=1)
    parameters = {"nthread": 1, "max_depth": 1, "min_child_weight": 0, "seed": 0}
    xgb.train(parameters, matrix, num_boost_round=2).save_model(folder / "model.ubj")
