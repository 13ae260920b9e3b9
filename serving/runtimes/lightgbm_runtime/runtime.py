"""LightGBM models: the text that `Booster.save_model` writes, in `model.txt` or `model.bst`.

The answers are those of `Booster(model_file=...).predict(rows)`. A pickled estimator of its scikit-learn
interface is a scikit-learn model, in `model.joblib` or `model.pkl`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    import lightgbm as lgb
except OSError as error:  # a library of the system is missing
    raise ImportError(f"{error}; LightGBM needs OpenMP: apt-get install libgomp1") from error

from serving.errors import InvalidInputs, InvalidOutputs, LoadFailed, ModelFailed
from serving.model_schema import DEFAULT_SIGNATURE, ModelSchema, ModelSignature, TensorSpec
from serving.runtimes import ArrayFormat, InputFormat, LoadSpec, RowsFormat, feature_rows
from serving.runtimes.datatypes import BYTES
from serving.runtimes.framework_detection import find_model_file
from serving.runtimes.input_conversion import to_regular_array
from serving.runtimes.instance_batch import Batch
from serving.runtimes.lightgbm_runtime.categorical_features import (
    encode_categories,
    list_text_codes,
    match_categories,
)
from serving.runtimes.lightgbm_runtime.framework import FRAMEWORK
from serving.runtimes.lightgbm_runtime.model_file import ModelHeader, read_checked_header
from serving.runtimes.prediction_methods import check_arguments
from serving.runtimes.schema_inference import (
    INSTANCES,
    chain_lazily,
    find_answered_example,
    infer_output,
    list_labels,
    round_for_display,
)

_OWNER = "a LightGBM model"
# The shape of the rows is checked here, and their names are put in order here.
_SERVER_ARGUMENTS = frozenset({"validate_features"})
_MAX_INT = 2**31 - 1
_MULTICLASS = frozenset({"multiclass", "multiclassova"})


def load_model(spec: LoadSpec) -> LightgbmRuntime:
    """Load the model's text. Raises LoadFailed with a sentence that says what to do."""
    file = find_model_file(spec.model_dir, FRAMEWORK)
    header = read_checked_header(file)
    return LightgbmRuntime(_read_booster(file), header, spec.threads)


class LightgbmRuntime:
    """A Booster. Rows are independent in every one, and trees give a row the same bits in any company."""

    framework = FRAMEWORK
    mergeable = True
    exact = True

    def __init__(self, booster: Any, header: ModelHeader, threads: int) -> None:
        self._booster = booster
        self._header = header
        self._threads = threads
        self._feature_names = list(header.feature_names)
        self._categorical = _list_categorical(booster, header)
        categories = match_categories(booster.pandas_categorical, self._categorical)
        self._codes = list_text_codes(categories or {})
        self.warnings = tuple(self._describe_coded_categories(categories))
        self._input_format: InputFormat = (
            RowsFormat()
            if self._codes
            else ArrayFormat(header.width, nullable=True, allows_objects=bool(self._feature_names))
        )

    def input_format(self, parameters: Mapping[str, Any]) -> InputFormat:
        """One array of the model's width, in which null is a missing value; rows if categories are texts."""
        if parameters:
            _parse_arguments(parameters)
        return self._input_format

    def predict(self, instances: Any, /, **parameters: Any) -> Batch:
        """What the booster's `predict` says, in the shape the library gives it."""
        arguments = _parse_arguments(parameters)
        array = self._to_array(instances)
        try:
            answer = self._booster.predict(array, num_threads=self._threads, **arguments)
        except Exception as error:
            # The rows have been checked: what is still wrong is a parameter of the request, or the model.
            blame = InvalidInputs if arguments else ModelFailed
            raise blame(f"Exception during lightgbm prediction: {error}") from error
        return _check_predictions(answer, len(array))

    def make_synthetic_rows(self, count: int) -> Batch | None:
        """Numbers in the width of the model, with codes for categories."""
        rows = feature_rows.make_numeric_rows(count, self._header.width)
        for place in self._categorical:
            rows[:, place] = np.arange(count) % 3
        return rows

    def warmup_requests(self) -> tuple[()]:
        """None: LightGBM models carry no recorded requests."""
        return ()

    def infer_schema(self, examples: Sequence[Any] = ()) -> ModelSchema:
        """Columns by name where it was trained with names, labels where it scores each."""
        answered = find_answered_example(self, chain_lazily(examples, self.make_example_instances))
        several = self._header.objective in _MULTICLASS
        classes = list_labels(np.arange(self._header.class_count)) if several else ()
        output = infer_output(answered, classes, answers_labels=False)
        return ModelSchema(
            FRAMEWORK.platform,
            {DEFAULT_SIGNATURE: ModelSignature(self._describe_inputs(), (output,))},
            example=answered and answered.instance,
            answer=answered and answered.answer,
        )

    def describe_versions(self) -> str:
        """Which LightGBM computes it."""
        return f"This server has lightgbm {lgb.__version__}."

    def make_example_instances(self) -> Iterator[Any]:
        """A made-up instance."""
        row = round_for_display(feature_rows.make_numeric_rows(1, self._header.width))[0].tolist()
        for place in self._categorical:
            row[place] = next(iter(self._codes[place])) if place in self._codes else 0
        yield dict(zip(self._feature_names, row, strict=True)) if self._feature_names else row

    def _describe_inputs(self) -> tuple[TensorSpec, ...]:
        if self._feature_names:
            return tuple(self._describe_column(place, name) for place, name in enumerate(self._feature_names))
        return (TensorSpec(INSTANCES, "FP64", (-1, self._header.width)),)

    def _describe_column(self, place: int, name: str) -> TensorSpec:
        """A feature as an input of its own: numbers, codes, or the texts that are known."""
        if place in self._codes:
            return TensorSpec(name, BYTES, (-1,), classes=tuple(self._codes[place]))
        return TensorSpec(name, "INT64" if place in self._categorical else "FP64", (-1,))

    def _describe_coded_categories(self, categories: Mapping[int, Sequence[Any]] | None) -> Iterator[str]:
        """What to send for categories that are no texts, or of which the file does not tell the column."""
        if categories is None:
            yield (
                "The model was trained on a data frame with categories, but its file does not tell which are "
                "of which column: requests have their codes, numbers from 0 in the order of the categories."
            )
        for place in sorted((categories or {}).keys() - self._codes.keys()):
            name = repr(self._feature_names[place]) if self._feature_names else f"value {place}"
            yield (
                f"The categories of {name} are not texts: requests have their codes, numbers from 0 in the "
                "order of the categories."
            )

    def _to_array(self, instances: Any) -> NDArray[Any]:
        is_named = feature_rows.starts_with_object(instances)
        if is_named:
            instances = feature_rows.order_features(instances, self._feature_names)
        if self._codes and isinstance(instances, list):
            instances = encode_categories(instances, self._codes)
        array = to_regular_array(instances) if isinstance(instances, list) else np.asarray(instances)
        are_plain = array is not None and array.ndim == 2 and array.dtype.kind != "O"
        if (
            is_named
            and not are_plain
            and (nested := feature_rows.describe_nested_value(instances, self._feature_names))
        ):
            raise InvalidInputs(nested)
        if array is None:
            raise InvalidInputs("The instances differ in length.")
        if array.dtype.kind == "O":
            array = _to_floats(array)
        if array.dtype.kind not in "biuf" or array.ndim != 2:
            raise InvalidInputs("Each instance must be a list of numbers or nulls.")
        if array.shape[1] != self._header.width:
            raise InvalidInputs(
                f"The instances have {array.shape[1]} values; the model expects {self._header.width}."
            )
        return array


# ---- loading


def _read_booster(file: Path) -> Any:
    try:
        return lgb.Booster(model_file=file)
    except (lgb.basic.LightGBMError, ValueError, TypeError) as error:
        raise LoadFailed(
            f"{file.name} is not a model that LightGBM {lgb.__version__} can read: {error}. "
            "Copy the file again."
        ) from error


def _list_categorical(booster: Any, header: ModelHeader) -> tuple[int, ...]:
    """The places of categorical features: those that training was told, and those that trees could use."""
    told = booster.params.get("categorical_feature")
    if isinstance(told, list) and all(isinstance(place, int) and 0 <= place < header.width for place in told):
        return tuple(sorted({*told, *header.categorical}))
    return header.categorical


# ---- parameters


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -1 <= value <= _MAX_INT


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


_ARGUMENTS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "raw_score": (_is_flag, "true or false"),
    "pred_leaf": (_is_flag, "true or false"),
    "pred_contrib": (_is_flag, "true or false"),
    "start_iteration": (_is_count, "an integer"),
    "num_iteration": (_is_count, "an integer"),
    "pred_early_stop": (_is_flag, "true or false"),
    "pred_early_stop_freq": (_is_count, "an integer"),
    "pred_early_stop_margin": (_is_number, "a number"),
}


def _parse_arguments(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `Booster.predict` that a request has. Raises InvalidInputs."""
    given = {name: value for name, value in parameters.items() if name not in _SERVER_ARGUMENTS}
    arguments = check_arguments(given, frozenset(_ARGUMENTS), _OWNER)
    for name, value in arguments.items():
        is_valid, words = _ARGUMENTS[name]
        if not is_valid(value):
            raise InvalidInputs(f'"{name}" must be {words}; it is {value!r}.')
    return arguments


# ---- arrays


def _to_floats(array: NDArray[Any]) -> NDArray[np.float64]:
    """Numbers and nulls, which are missing values."""
    try:
        return array.astype(np.float64)
    except (ValueError, TypeError) as error:
        raise InvalidInputs(f"Each instance must be a list of numbers or nulls: {error}.") from error


def _check_predictions(answer: Any, rows: int) -> Batch:
    if not isinstance(answer, np.ndarray) or not answer.ndim:
        raise InvalidOutputs(f"predict must return an array, not {type(answer).__name__}.")
    if len(answer) != rows:
        raise InvalidOutputs(f"predict returned {len(answer)} predictions for {rows} instances.")
    return answer


def write_tiny_model(folder: Path) -> None:
    """Train a model of two features, on one thread, for the warm-up of spare nodes. Raises OSError."""
    rows = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 0.5], [1.0, 0.5]])
    parameters = {
        "objective": "binary",
        "num_threads": 1,
        "min_data_in_leaf": 1,
        "min_data_in_bin": 1,
        "verbosity": -1,
        "seed": 0,
    }
    booster = lgb.train(parameters, lgb.Dataset(rows, [0, 1, 0, 1]), num_boost_round=2)
    booster.save_model(folder / "model.txt")
