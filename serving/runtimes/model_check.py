"""Checks whether a loaded model can predict, by trial predictions.

An error on made-up input proves nothing, since the model may want categories, texts or ranges that are not
known, unless the library raises it for a broken model: for an attribute that one of its objects lacks, an
estimator that is not fitted, a module that is missing.
"""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, Protocol, runtime_checkable

from serving.errors import InvalidInputs, ServingError, describe_exception, sanitize_text
from serving.frameworks import load_frameworks
from serving.model_schema import ModelSchema, fixed_row_count
from serving.runtimes import ArrayFormat, Runtime
from serving.runtimes.input_conversion import convert_instances
from serving.runtimes.json_codec import encode_predictions
from serving.runtimes.schema_inference import EXAMPLE_FILE
from serving.runtimes.user_packages import KNOWN_PACKAGES

# Seconds and instances that are spent on a model which answers none of them.
_MAX_SECONDS, _MAX_INSTANCES = 5.0, 100
_MAX_WARNINGS = 5
_MAX_TEXT_LENGTH = 1000

# Code of these does with its input what its documentation says.
_FRAMEWORK_PACKAGES = frozenset(chain.from_iterable(one.packages for one in load_frameworks().values()))
# Classes of exceptions that speak of the model, whatever it was asked.
_MODEL_FAULTS = frozenset(
    {
        "NotFittedError",
        "ImportError",
        "ModuleNotFoundError",
        "NameError",
        "UnboundLocalError",
        "NotImplementedError",
        "SystemError",
    }
)
# And those that do where nothing but numbers was asked, in the width of the model.
_MODEL_FAULTS_FOR_NUMBERS = frozenset({"AttributeError", "TypeError", "KeyError", "IndexError"})
_MISSING_ATTRIBUTE = re.compile(r"'?([\w.]+)'? object has no attribute")
# What instances become on their way: that such a value lacks an attribute may be said of what was asked.
_INPUT_TYPES = frozenset(
    {
        "bool", "int", "float", "complex", "bytes", "tuple",
        "ndarray", "numpy.ndarray", "numpy.str_", "numpy.float64", "numpy.int64", "matrix",
        "DataFrame", "Series", "Index", "csr_matrix", "csc_matrix", "csr_array", "csc_array", "Timestamp",
    }
)  # fmt: skip
_BROKEN_MODEL_TEXTS = re.compile(
    r"Buffer dtype mismatch|incompatible dtype|Does not understand character buffer"
)
_BROKEN_GRAPH_TEXTS = re.compile(
    r"Could not find variable|[Cc]ontainer .*does not exist|Resource .*does not exist"
    r"|[Tt]able not initialized|uninitialized value"
)


@dataclass(frozen=True, slots=True)
class RaisedException:
    """An exception of a model: its class, its text, and whether the code of a library raised it.

    `estimator_package` is the package of the estimator that lacks an attribute, "" where none does.
    """

    kind: str
    text: str
    by_library: bool
    estimator_package: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" if self.text else self.kind


class RemoteException(Exception):
    """Stands for an exception in the process of another interpreter."""

    def __init__(self, raised: RaisedException) -> None:
        super().__init__(str(raised))
        self.raised = raised


@dataclass(frozen=True, slots=True)
class PredictionTrial:
    """A prediction that was tried with one instance.

    `description` is the instance in words, `error` what a client would get, "" if it was answered.
    `is_input_fault`: the instance is at fault. `is_recorded`: it came with the model and was not made up.
    `is_numeric`: it had finite numbers only, as many as the model takes.
    """

    description: str
    error: str = ""
    raised: RaisedException | None = None
    is_input_fault: bool = False
    is_recorded: bool = False
    is_numeric: bool = False


@dataclass(frozen=True, slots=True)
class ModelCheckResult:
    """Why a model cannot be served, "" if it can, and what its owner should know."""

    failure: str = ""
    warnings: tuple[str, ...] = ()


@runtime_checkable
class CheckableRuntime(Protocol):
    """A runtime that can make instances up, as requests have them, and knows what helps."""

    def make_example_instances(self) -> Iterable[Any]:
        """Those that it may answer, the likeliest first."""

    def describe_versions(self) -> str:
        """Which version the model was made with, as far as it is known, which is here, and what to do."""


def judge_trials(
    trials: Sequence[PredictionTrial], describe_versions: Callable[[], str] = str
) -> ModelCheckResult:
    """What follows from the trials of a model. `describe_versions` is called for one that is broken."""
    refused = [trial for trial in trials if trial.error]
    if len(refused) == len(trials):
        broken = next((trial for trial in refused if is_model_fault(trial)), None)
        if broken is not None:
            text = (
                f"The model cannot predict: of {_describe_count(trials)} none was answered. "
                f"{_format_reason(broken)}"
            )
            return ModelCheckResult(
                failure=" ".join(filter(None, (text, describe_versions(), _package_advice(broken))))
            )
    warnings = [
        f"{trial.description} was not answered: {trial.error}" for trial in refused if trial.is_recorded
    ]
    made_up = [trial for trial in refused if not trial.is_recorded]
    if made_up and len(refused) == len(trials):
        warnings.append(
            f"The model could not be checked: it refused the synthetic instances ({made_up[0].error}). "
            f"An instance in {EXAMPLE_FILE} beside the model is tried when a version is created."
        )
    return ModelCheckResult(warnings=tuple(dict.fromkeys(warnings))[:_MAX_WARNINGS])


def warn_untried(runtime: Runtime, trials: Sequence[PredictionTrial]) -> tuple[str, ...]:
    """A warning if nothing has been tried with a model of a library, which nobody has checked then."""
    if trials or runtime.framework.runs_user_code:
        return ()
    return (
        "The model was not tried: it does not tell what its instances look like. An instance in "
        f"{EXAMPLE_FILE} beside the model is tried when a version is created.",
    )


def describe_runtime_versions(runtime: Runtime) -> str:
    """What helps a model that cannot predict, "" where nothing is known."""
    return runtime.describe_versions() if isinstance(runtime, CheckableRuntime) else ""


def is_model_fault(trial: PredictionTrial) -> bool:
    """Whether an exception says that the model is broken, and nothing of what it was asked."""
    raised = trial.raised
    if raised is None or not (raised.by_library or raised.estimator_package):
        return False
    given_numbers = trial.is_numeric and raised.kind in _MODEL_FAULTS_FOR_NUMBERS
    if raised.estimator_package or raised.kind in _MODEL_FAULTS or given_numbers:
        return True
    if raised.kind == "AttributeError":
        found = _MISSING_ATTRIBUTE.search(raised.text)
        return found is not None and found[1] not in _INPUT_TYPES and not trial.is_input_fault
    if raised.kind == "ValueError":
        return _BROKEN_MODEL_TEXTS.search(raised.text) is not None
    return _BROKEN_GRAPH_TEXTS.search(raised.text) is not None


def find_raised_exception(error: BaseException) -> RaisedException:
    """What lies behind an error that a runtime has raised."""
    cause: BaseException = error
    while cause.__cause__ is not None and isinstance(cause, ServingError):
        cause = cause.__cause__
    if isinstance(cause, RemoteException):
        return cause.raised
    text = describe_exception(cause).removeprefix(type(cause).__name__).removeprefix(": ")
    return RaisedException(
        type(cause).__name__,
        sanitize_text(text, _MAX_TEXT_LENGTH),
        _is_raised_by_library(cause),
        _estimator_package(cause),
    )


def make_failed_trial(
    description: str, error: BaseException, *, is_recorded: bool = False, is_numeric: bool = False
) -> PredictionTrial:
    """The trial that ended with an error."""
    text = error.message if isinstance(error, ServingError) else describe_exception(error)
    return PredictionTrial(
        description,
        sanitize_text(text, _MAX_TEXT_LENGTH),
        find_raised_exception(error),
        isinstance(error, InvalidInputs),
        is_recorded,
        is_numeric,
    )


def run_trials(runtime: Runtime, schema: ModelSchema, examples: Iterable[Any]) -> Iterator[PredictionTrial]:
    """Try what is not known yet: examples that came along, and if none is answered what can be made up."""
    if schema.example is not None:
        yield PredictionTrial("An instance")
    rows = fixed_row_count(schema.signatures.get(schema.default)) or 1
    for example in examples:
        if example != schema.example:
            yield try_instance(runtime, example, EXAMPLE_FILE, rows, is_recorded=True)
    if schema.example is not None or not isinstance(runtime, CheckableRuntime):
        return
    end = time.monotonic() + _MAX_SECONDS
    for instance in islice(_iterate_instances(runtime), _MAX_INSTANCES):
        trial = try_instance(runtime, instance, "A made-up instance", rows)
        yield trial
        if not trial.error or time.monotonic() > end:
            return


def try_instance(
    runtime: Runtime, instance: Any, description: str, rows: int = 1, *, is_recorded: bool = False
) -> PredictionTrial:
    """Ask a model one instance, in a request with so many of it."""
    is_numeric = False
    try:
        form = runtime.input_format({})
        batch = convert_instances([instance] * rows, form)
        is_numeric = isinstance(form, ArrayFormat)
        encode_predictions(runtime.predict(batch))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # there may be code of a user in it
        trial = make_failed_trial(description, error, is_recorded=is_recorded, is_numeric=is_numeric)
        # A routine may need fields of a request that an example lacks: what it raises says nothing of it.
        return replace(trial, raised=None) if runtime.framework.runs_user_code else trial
    return PredictionTrial(description, is_recorded=is_recorded, is_numeric=is_numeric)


def _iterate_instances(runtime: CheckableRuntime) -> Iterator[Any]:
    """Those of a runtime, up to the first that it fails to make."""
    try:
        yield from runtime.make_example_instances()
    except Exception:  # objects of other versions may not even tell what they look like
        return


def _is_raised_by_library(error: BaseException) -> bool:
    """Whether a library has raised it; code of a user may have called that."""
    frames = [
        str(frame.f_globals.get("__name__")).partition(".")[0]
        for frame, _ in traceback.walk_tb(error.__traceback__)
    ]
    if frames and frames[-1] in _FRAMEWORK_PACKAGES:
        return True
    return all(root in KNOWN_PACKAGES for root in frames)


def _estimator_package(error: BaseException) -> str:
    """Where the estimator comes from that lacks an attribute, "" if that is not what is wrong."""
    owner = error.obj if isinstance(error, AttributeError) else None
    if owner is None or not hasattr(type(owner), "get_params"):
        return ""
    return type(owner).__module__.partition(".")[0]


def _package_advice(trial: PredictionTrial) -> str:
    """What helps where the estimator that is broken is of none of the libraries that are known."""
    package = trial.raised.estimator_package if trial.raised else ""
    if not package or package in KNOWN_PACKAGES:
        return ""
    return (
        f"The estimator is of the package {package}, which may have changed since: in packageUris, give the "
        "release that the model was made with."
    )


def _describe_count(trials: Sequence[PredictionTrial]) -> str:
    recorded = sum(trial.is_recorded for trial in trials)
    made_up = len(trials) - recorded
    parts = [f"{made_up} made-up"] * bool(made_up) + [f"{recorded} recorded"] * bool(recorded)
    total = "instance" if len(trials) == 1 else "instances"
    return f"{' and '.join(parts)} {total}"


def _format_reason(trial: PredictionTrial) -> str:
    text = str(trial.raised)
    return text if text.endswith(".") else f"{text}."
