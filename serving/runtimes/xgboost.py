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

from serving.errors import InvalidInputs, InvalidOutputs, LoadFailed, ModelFailed
from serving.predictor.program import lacks_method, methods_of
from serving.runtimes import (
    Array,
    Form,
    Rows,
    Runtime,
    Source,
    frames,
    pickles,
    xgboost_offers,
    xgboost_probes,
)
from serving.runtimes.acceleration import MOST_FEATURES, Offer, Predict
from serving.runtimes.arguments import accepted, checked
from serving.runtimes.conversion import natural
from serving.runtimes.datatypes import BYTES
from serving.runtimes.describing import INSTANCES, PREDICTIONS, first, labels, outcome, readable, show
from serving.runtimes.detect import PICKLES, find_model, first_class
from serving.runtimes.finite import is_finite
from serving.runtimes.instances import Batch
from serving.runtimes.methods import PREDICT, Asked, chosen, describe_methods
from serving.runtimes.pickles import root
from serving.runtimes.xgboost_categories import categories_of, coded
from serving.runtimes.xgboost_files import Format, checked_model, format_of
from serving.schema import DEFAULT_SIGNATURE, ModelSchema, ModelSignature, TensorSpec

# The width is checked here and names are put in order here, so that plain rows can ask a model with names.
_OURS = ("validate_features",)
# As much of a file as tells its format.
_HEAD = 4096
# The classes whose `predict` we know to be nothing but the booster's, with labels made of it in classifiers.
_ESTIMATORS = (xgb.XGBClassifier, xgb.XGBRegressor, xgb.XGBRanker, xgb.XGBRFClassifier, xgb.XGBRFRegressor)
_USUAL = (np.dtype(np.float64), np.dtype(np.int64))


class BoosterRuntime:
    """A Booster, and what its scikit-learn sibling shares with it.

    Rows are independent in every booster. Trees give a row the same bits in any company; gblinear's
    products need not.
    """

    framework = "XGBOOST"
    mergeable = True
    method = PREDICT
    methods: Sequence[str] = (PREDICT,)

    def __init__(
        self, booster: Any, warnings: tuple[str, ...], threads: int, rounds: tuple[int, int] = (0, 0)
    ) -> None:
        booster.set_param({"nthread": threads})
        if not _has_rounds(booster):
            raise LoadFailed(
                "The model was trained for no round: to everything it answers its base score, and that is "
                "another number in XGBoost 3.1 and later. Train it for a round at least."
            )
        self.warnings = warnings
        self._rounds = rounds
        self._kind = _kind(booster)
        self.exact = self._kind != "gblinear"
        self._booster = booster
        self._threads = threads
        self._names: list[str] = booster.feature_names or []
        self._width: int | None = booster.num_features() or None
        if self._width is not None and self._width > frames.WIDEST:
            raise LoadFailed(
                f"The model says that its rows have {self._width} features; there can be up to "
                f"{frames.WIDEST}. The file is damaged, or the model was trained on columns that should be "
                "hashed into fewer."
            )
        self._owner = "a Booster"
        self._known = {PREDICT: accepted(booster.predict, besides=_OURS)}
        self._categories = categories_of(booster)
        texts = any(feature.codes for feature in self._categories.values())
        self._form: Form = Rows() if texts else Array(self._width, nullable=True, objects=bool(self._names))
        self._faster: Predict | None = None

    def form(self, parameters: Mapping[str, Any]) -> Form:
        """One array of the model's width, in which null is a missing value; rows if categories are texts."""
        if parameters:
            self._asked(parameters)
        return self._form

    def predict(self, instances: Any, /, **parameters: Any) -> Batch:
        """What the model's own `predict` says, in the shape the library gives it."""
        if self._faster is not None and not parameters and self._is_usual(instances):
            return self._faster(instances)
        asked, arguments = self._asked(parameters)
        array = self._array(instances)
        if isinstance(asked, tuple):
            return {name: self._answer(self._method_of(name), array, arguments) for name in asked}
        answer: Batch = self._answer(asked, array, arguments)
        return answer

    def _answer(self, method: str, array: NDArray[Any], arguments: dict[str, Any]) -> Any:
        """What a method of the model says, a row for each instance."""
        try:
            result = self._predicted(array, arguments, method)
        except InvalidInputs:
            raise
        except Exception as error:
            # The rows have been checked: what is still wrong is a parameter of the request, or the model.
            blame = InvalidInputs if arguments else ModelFailed
            raise blame(f"Exception during xgboost prediction: {_sentence(error)}") from error
        return _checked(result, len(array))

    def offers(self) -> Sequence[Offer]:
        """The call in place, and treelite's interpreter; none for linear boosters and very wide ones."""
        asked = self._wanted() if self.method == PREDICT else None
        if asked is None or asked.width > MOST_FEATURES or self._kind == "gblinear":
            return ()
        return xgboost_offers.offers(asked)

    def probes(self) -> Sequence[Batch]:
        """Rows around the thresholds of the trees."""
        return xgboost_probes.probes(xgboost_offers.trees(self._booster), self._width or 0)

    def plain(self, rows: Any, /) -> Batch:
        """The library's own answer."""
        return _checked(self._predicted(rows, {}, self.method), len(rows))

    def use(self, faster: Predict | None) -> None:
        """Have `predict` ask this for ordinary rows."""
        self._faster = faster

    def samples(self, count: int) -> Batch | None:
        """Numbers in the width of the model, None if it does not say."""
        return frames.made_up(count, self._width) if self._width else None

    def warmup_requests(self) -> tuple[()]:
        """None: XGBoost models carry no recorded requests."""
        return ()

    def schema(self, examples: Sequence[Any] = ()) -> ModelSchema:
        """Columns by name where it was trained with names, labels where it answers them or scores each."""
        shown = show(self, first(examples, self.instances))
        classes = self._classes()
        found = outcome(shown, classes, of_labels=self.method == PREDICT)
        return ModelSchema(
            "xgboost",
            {DEFAULT_SIGNATURE: ModelSignature(self._inputs(), (found,))},
            method=self.method,
            methods=describe_methods(self, self, shown, classes),
            example=shown and shown.instance,
            answer=shown and shown.answer,
        )

    def advice(self) -> str:
        """Which XGBoost computes it."""
        return f"This server has xgboost {xgb.__version__}."

    def _inputs(self) -> tuple[TensorSpec, ...]:
        if self._names:
            return tuple(self._column(place, name) for place, name in enumerate(self._names))
        return (TensorSpec(INSTANCES, "FP64", (-1, self._width or -1)),)

    def _column(self, place: int, name: str) -> TensorSpec:
        """A feature as an input of its own: numbers, codes, or the texts that are known."""
        feature = self._categories.get(place)
        if feature is None:
            return TensorSpec(name, "FP64", (-1,))
        return TensorSpec(name, BYTES if feature.texts else "INT64", (-1,), classes=feature.texts)

    def instances(self) -> Iterator[Any]:
        """A made-up instance, if the model says how wide one is."""
        if self._width:
            row = readable(frames.made_up(1, self._width))[0].tolist()
            for place, feature in self._categories.items():
                row[place] = feature.texts[0] if feature.texts else 0
            yield dict(zip(self._names, row, strict=True)) if self._names else row

    def _classes(self) -> tuple[Any, ...]:
        """Of a booster for several classes their numbers: it answers one of them, or a score for each."""
        learner = json.loads(self._booster.save_config())["learner"]
        several = str(learner["objective"]["name"]).startswith("multi:")
        return labels(np.arange(int(learner["learner_model_param"]["num_class"]))) if several else ()

    def _wanted(self) -> xgboost_offers.Asked | None:
        """What this runtime wants of the booster; None if only the object itself knows."""
        return xgboost_offers.Asked(self._booster, self._width, self._rounds) if self._width else None

    def _is_usual(self, rows: Any) -> bool:
        """Whether these are rows that XGBoost takes without a word: numbers that a float32 holds, or NaN."""
        if not isinstance(rows, np.ndarray) or rows.ndim != 2 or rows.shape[1] != self._width:
            return False
        if not rows.flags.c_contiguous or rows.dtype not in _USUAL:
            return False
        return is_finite(rows, missing=True)

    def _asked(self, parameters: Mapping[str, Any]) -> tuple[Asked, dict[str, Any]]:
        """What is asked, and with which arguments. Raises InvalidInputs."""
        asked, rest = chosen(parameters, self.method, self.methods, self._owner)
        given = {name: value for name, value in rest.items() if name not in _OURS}
        arguments: dict[str, Any] = {}
        for name in asked if isinstance(asked, tuple) else (asked,):
            method = self._method_of(name)
            arguments = checked(given, self._known[method], self._owner, method)
        if isinstance(arguments.get("iteration_range"), list):
            arguments["iteration_range"] = tuple(arguments["iteration_range"])
        return asked, arguments

    def _method_of(self, output: str) -> str:
        return self.method if output == PREDICTIONS else output

    def _array(self, instances: Any) -> NDArray[Any]:
        if frames.are_objects(instances):
            instances = frames.in_order(instances, self._names)
        if self._categories and isinstance(instances, list):
            instances = coded(instances, self._names, self._categories)
        array = natural(instances) if isinstance(instances, list) else np.asarray(instances)
        if array is None:
            raise InvalidInputs("Could not initialize DMatrix from inputs: the instances differ in length.")
        if array.dtype.kind == "O" and any(value is None for value in array.flat):
            array = _with_gaps(array)
        if array.ndim == 2 and self._width is not None and array.shape[1] != self._width:
            raise InvalidInputs(
                f"The instances have {array.shape[1]} values; the model expects {self._width}."
            )
        if array.dtype.kind not in "biuf" or array.ndim != 2:
            raise InvalidInputs(
                "Could not initialize DMatrix from inputs: each instance must be a list of numbers or nulls."
            )
        return array

    def _predicted(self, array: NDArray[Any], arguments: dict[str, Any], _: str) -> Any:
        try:
            matrix = xgb.DMatrix(array, nthread=self._threads)
        except (ValueError, TypeError) as error:
            raise _no_matrix(error) from error
        asked = {"iteration_range": self._rounds, **arguments}
        return self._booster.predict(matrix, validate_features=False, **asked)


class EstimatorRuntime(BoosterRuntime):
    """An object of XGBoost's scikit-learn interface."""

    def __init__(
        self, estimator: Any, warnings: tuple[str, ...], threads: int, method: str = PREDICT
    ) -> None:
        self.method = method
        self.methods = methods_of(estimator)
        if method not in self.methods:
            raise LoadFailed(lacks_method("The file", estimator, method, self.methods))
        super().__init__(_booster_of(estimator), warnings, threads)
        if type(estimator) in _ESTIMATORS:
            for name, value in vars(type(estimator)()).items():  # parameters that later versions have brought
                vars(estimator).setdefault(name, value)
        estimator.n_jobs = threads
        self.exact = self.exact or (is_classifier(estimator) and method == PREDICT)
        self._estimator = estimator
        self._owner = type(estimator).__name__
        self._known = {
            name: accepted(getattr(estimator, name), besides=(*_OURS, "base_margin")) for name in self.methods
        }

    def _classes(self) -> tuple[Any, ...]:
        return labels(self._estimator.classes_) if is_classifier(self._estimator) else ()

    def _wanted(self) -> xgboost_offers.Asked | None:
        if type(self._estimator) not in _ESTIMATORS or not self._width:
            return None
        try:
            rounds = (0, self._estimator.best_iteration + 1)
        except AttributeError:  # trained without early stopping
            rounds = (0, 0)
        finish = _labels(self._estimator) if is_classifier(self._estimator) else None
        return xgboost_offers.Asked(self._booster, self._width, rounds, self._estimator.missing, finish)

    def _predicted(self, array: NDArray[Any], arguments: dict[str, Any], method: str) -> Any:
        return getattr(self._estimator, method)(array, validate_features=False, **arguments)


def load(source: Source) -> Runtime:
    """Load an XGBoost model. Raises LoadFailed with a sentence that says what to do."""
    file = find_model(source.model_dir, "XGBOOST")
    if _is_native(file):
        _check_booster_method(source.method, file.name)
        return _native(file, source.threads)
    loaded = pickles.load(file, source.packages)
    model = loaded.model
    if isinstance(model, xgb.Booster):
        _check_booster_method(source.method, file.name)
        return BoosterRuntime(model, loaded.warnings, source.threads)
    if isinstance(model, xgb.XGBModel):
        return EstimatorRuntime(model, loaded.warnings, source.threads, source.method or PREDICT)
    name = f"{type(model).__module__}.{type(model).__name__}"
    ways = (
        "Set the framework to SCIKIT_LEARN, or leave it out."
        if root(model) == "sklearn"
        else (
            "Save the Booster or the XGBoost estimator itself, or serve it with a custom prediction routine."
        )
    )
    raise LoadFailed(f"{file.name} holds a {name}, which is not an XGBoost model. {ways}")


def _check_booster_method(method: str, file: str) -> None:
    if method not in ("", PREDICT):
        raise LoadFailed(f"{file} holds a Booster, which has no {method} method. It has {PREDICT} only.")


def _is_native(file: Path) -> bool:
    if file.name in PICKLES:
        with file.open("rb") as stream:
            return format_of(stream.read(_HEAD)) is not Format.OTHER
    return not first_class(file)


def _native(file: Path, threads: int) -> BoosterRuntime:
    data = checked_model(file.read_bytes(), file.name)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            # From memory: given a path, XGBoost tells the format from the name.
            booster = xgb.Booster(model_file=bytearray(data))
        except (xgb.core.XGBoostError, ValueError, TypeError) as error:
            raise LoadFailed(
                f"{file.name} is not a model that XGBoost {xgb.__version__} can read: {_sentence(error)}"
            ) from error
    return BoosterRuntime(booster, pickles.texts(caught), threads, _rounds(booster))


def _rounds(booster: Any) -> tuple[int, int]:
    """Those that an estimator which saved this file would predict with (0, 0: all of them).

    A Booster that was trained with early stopping keeps all its trees in `predict`, an estimator does not.
    """
    best = booster.attr("best_iteration")
    if booster.attr("scikit_learn") is None or best is None or _kind(booster) == "gblinear":
        return 0, 0
    trees = booster.attr("best_ntree_limit")
    if trees is None:
        return 0, int(best) + 1
    # Until 1.5 a file did not tell how many trees make a round: those of a forest count as so many rounds.
    return 0, int(trees) // _parallel_trees(booster)


def _parallel_trees(booster: Any) -> int:
    model = json.loads(booster.save_config())["learner"]["gradient_booster"]
    return int(model.get("gbtree", model)["gbtree_model_param"]["num_parallel_tree"])


def _booster_of(estimator: Any) -> Any:
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


def _kind(booster: Any) -> str:
    config = json.loads(booster.save_config())
    return str(config["learner"]["gradient_booster"]["name"])


def _labels(estimator: Any) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """What XGBClassifier makes of its booster's answer."""

    def labels(answer: NDArray[Any]) -> NDArray[Any]:
        if answer.ndim > 1 and estimator.n_classes_ != 2:
            return np.asarray(answer.argmax(axis=1))
        if answer.ndim > 1 and answer.shape[1] != 1:  # of several labels, those that hold
            return (answer > 0.5).astype(np.float64)
        if estimator.objective == "multi:softmax":
            return answer.astype(np.int32)
        return (answer > 0.5).reshape(len(answer)).astype(np.int64)

    return labels


def _with_gaps(array: NDArray[Any]) -> NDArray[np.float64]:
    """Numbers and nulls, which are missing values."""
    try:
        return array.astype(np.float64)
    except (ValueError, TypeError) as error:
        raise _no_matrix(error) from error


def _no_matrix(error: Exception) -> InvalidInputs:
    return InvalidInputs(f"Could not initialize DMatrix from inputs: {_sentence(error)}")


def _sentence(error: Exception) -> str:
    """XGBoost's message without its clock, source lines and native stack."""
    text = str(error).partition("\nStack trace")[0].partition("\n\n")[0]
    return re.sub(r"^\[[\d:]+\] \S+:\d+: ", "", text).strip()


def _checked(result: Any, rows: int) -> Batch:
    if not isinstance(result, np.ndarray) or not result.ndim:
        raise InvalidOutputs(f"predict must return an array, not {type(result).__name__}.")
    if len(result) != rows:
        raise InvalidOutputs(f"predict returned {len(result)} predictions for {rows} instances.")
    return result
