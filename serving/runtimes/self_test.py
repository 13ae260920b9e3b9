"""Whether a model that was loaded can predict: what it is tried with, and what follows from what it answered.

A model may refuse what was made up for it, which says nothing about it: it may want categories, texts or
ranges that nobody has told. What says that a model itself is broken is who raised, and what: an attribute
that an object of its library does not have, an estimator that is not fitted, a module that is not there.
"""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Protocol, runtime_checkable

from serving.errors import InvalidInputs, ServingError, describe_exception, make_sendable
from serving.runtimes import Array, Runtime
from serving.runtimes.codec import encode
from serving.runtimes.conversion import from_rows
from serving.runtimes.describing import EXAMPLE
from serving.runtimes.packages import KNOWN
from serving.schema import ModelSchema, fixed_row_count

# Seconds and instances that are spent on a model which answers none of them.
_SECONDS, _INSTANCES = 5.0, 100
_MOST_WARNINGS = 5
_LONGEST_TEXT = 1000

# Code of these does with its input what its documentation says.
_LIBRARIES = frozenset({"sklearn", "xgboost", "tensorflow", "keras"})
# Classes of exceptions that speak of the model, whatever it was asked.
_OF_MODELS = frozenset(
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
_OF_MODELS_GIVEN_NUMBERS = frozenset({"AttributeError", "TypeError", "KeyError", "IndexError"})
_NO_ATTRIBUTE = re.compile(r"'?([\w.]+)'? object has no attribute")
# What instances become on their way: that such a value lacks an attribute may be said of what was asked.
_VALUES = frozenset(
    {
        "bool", "int", "float", "complex", "bytes", "tuple",
        "ndarray", "numpy.ndarray", "numpy.str_", "numpy.float64", "numpy.int64", "matrix",
        "DataFrame", "Series", "Index", "csr_matrix", "csc_matrix", "csr_array", "csc_array", "Timestamp",
    }
)  # fmt: skip
_BROKEN_VALUES = re.compile(r"Buffer dtype mismatch|incompatible dtype|Does not understand character buffer")
_BROKEN_GRAPHS = re.compile(
    r"Could not find variable|[Cc]ontainer .*does not exist|Resource .*does not exist"
    r"|[Tt]able not initialized|uninitialized value"
)


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception of a model: its class, its text, and whether the code of a library raised it.

    `estimator_package` is the package of the estimator that lacks an attribute, "" where none does.
    """

    kind: str
    text: str
    by_library: bool
    estimator_package: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" if self.text else self.kind


class RaisedElsewhere(Exception):
    """Stands for an exception in the process of another interpreter."""

    def __init__(self, raised: Raised) -> None:
        super().__init__(str(raised))
        self.raised = raised


@dataclass(frozen=True, slots=True)
class Trial:
    """An instance that a model was asked.

    `what` it was in words, `error` what a client would have been told, "" if it was answered; `is_blamed`:
    that it is to blame itself. `comes_along`: it came with the model, and was not made up. `numbers`: it was
    of finite numbers only, as many as the model takes.
    """

    what: str
    error: str = ""
    raised: Raised | None = None
    is_blamed: bool = False
    comes_along: bool = False
    numbers: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a model cannot be served, "" if it can, and what its owner should know."""

    failure: str = ""
    warnings: tuple[str, ...] = ()


@runtime_checkable
class Tryable(Protocol):
    """A runtime that can make instances up, as requests have them, and knows what helps."""

    def instances(self) -> Iterable[Any]:
        """Those that it may answer, the likeliest first."""

    def advice(self) -> str:
        """Which version the model was made with, as far as it is known, which is here, and what to do."""


def judge(trials: Sequence[Trial], advice: Callable[[], str] = str) -> Verdict:
    """What follows from the trials of a model. `advice` tells what helps one that is broken."""
    refused = [trial for trial in trials if trial.error]
    if len(refused) == len(trials):
        broken = next((trial for trial in refused if is_of_model(trial)), None)
        if broken is not None:
            text = f"The model cannot predict: of {_count(trials)} none was answered. {_reason(broken)}"
            return Verdict(failure=" ".join(filter(None, (text, advice(), _package_advice(broken)))))
    warnings = [f"{trial.what} was not answered: {trial.error}" for trial in refused if trial.comes_along]
    made_up = [trial for trial in refused if not trial.comes_along]
    if made_up and len(refused) == len(trials):
        warnings.append(
            "Whether the model answers is not known: it refused what was made up for it "
            f"({made_up[0].error}). An instance in {EXAMPLE} beside the model is tried when a version is "
            "created."
        )
    return Verdict(warnings=tuple(dict.fromkeys(warnings))[:_MOST_WARNINGS])


def advice_of(runtime: Runtime) -> str:
    """What helps a model that cannot predict, "" where nothing is known."""
    return runtime.advice() if isinstance(runtime, Tryable) else ""


def is_of_model(trial: Trial) -> bool:
    """Whether an exception says that the model is broken, and nothing of what it was asked."""
    raised = trial.raised
    if raised is None or not (raised.by_library or raised.estimator_package):
        return False
    given_numbers = trial.numbers and raised.kind in _OF_MODELS_GIVEN_NUMBERS
    if raised.estimator_package or raised.kind in _OF_MODELS or given_numbers:
        return True
    if raised.kind == "AttributeError":
        found = _NO_ATTRIBUTE.search(raised.text)
        return found is not None and found[1] not in _VALUES and not trial.is_blamed
    if raised.kind == "ValueError":
        return _BROKEN_VALUES.search(raised.text) is not None
    return _BROKEN_GRAPHS.search(raised.text) is not None


def raised_of(error: BaseException) -> Raised:
    """What lies behind an error that a runtime has raised."""
    cause: BaseException = error
    while cause.__cause__ is not None and isinstance(cause, ServingError):
        cause = cause.__cause__
    if isinstance(cause, RaisedElsewhere):
        return cause.raised
    text = describe_exception(cause).removeprefix(type(cause).__name__).removeprefix(": ")
    return Raised(
        type(cause).__name__,
        make_sendable(text, _LONGEST_TEXT),
        _is_of_library(cause),
        _estimator_package(cause),
    )


def trial_of(what: str, error: BaseException, *, comes_along: bool = False, numbers: bool = False) -> Trial:
    """The trial that ended with an error."""
    text = error.message if isinstance(error, ServingError) else describe_exception(error)
    return Trial(
        what,
        make_sendable(text, _LONGEST_TEXT),
        raised_of(error),
        isinstance(error, InvalidInputs),
        comes_along,
        numbers,
    )


def trials(runtime: Runtime, schema: ModelSchema, examples: Iterable[Any]) -> Iterator[Trial]:
    """Try what is not known yet: examples that came along, and if none is answered what can be made up."""
    if schema.example is not None:
        yield Trial("An instance")
    rows = fixed_row_count(schema.signatures.get(schema.default)) or 1
    for example in examples:
        if example != schema.example:
            yield ask(runtime, example, EXAMPLE, rows, comes_along=True)
    if schema.example is not None or not isinstance(runtime, Tryable):
        return
    end = time.monotonic() + _SECONDS
    for instance in islice(_made_up(runtime), _INSTANCES):
        trial = ask(runtime, instance, "A made-up instance", rows)
        yield trial
        if not trial.error or time.monotonic() > end:
            return


def ask(runtime: Runtime, instance: Any, what: str, rows: int = 1, *, comes_along: bool = False) -> Trial:
    """Ask a model one instance, in a request with so many of it."""
    numbers = False
    try:
        form = runtime.form({})
        batch = from_rows([instance] * rows, form)
        numbers = isinstance(form, Array)
        encode(runtime.predict(batch))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # there may be code of a user in it
        trial = trial_of(what, error, comes_along=comes_along, numbers=numbers)
        # A routine may need fields of a request that an example lacks: what it raises says nothing of it.
        return replace(trial, raised=None) if runtime.framework == "CUSTOM" else trial
    return Trial(what, comes_along=comes_along, numbers=numbers)


def _made_up(runtime: Tryable) -> Iterator[Any]:
    """Those of a runtime, up to the first that it fails to make."""
    try:
        yield from runtime.instances()
    except Exception:  # objects of other versions may not even tell what they look like
        return


def _is_of_library(error: BaseException) -> bool:
    """Whether a library has raised it; code of a user may have called that."""
    frames = [
        str(frame.f_globals.get("__name__")).partition(".")[0]
        for frame, _ in traceback.walk_tb(error.__traceback__)
    ]
    if frames and frames[-1] in _LIBRARIES:
        return True
    return all(root in KNOWN for root in frames)


def _estimator_package(error: BaseException) -> str:
    """Where the estimator comes from that lacks an attribute, "" if that is not what is wrong."""
    owner = error.obj if isinstance(error, AttributeError) else None
    if owner is None or not hasattr(type(owner), "get_params"):
        return ""
    return type(owner).__module__.partition(".")[0]


def _package_advice(trial: Trial) -> str:
    """What helps where the estimator that is broken is of none of the libraries that are known."""
    package = trial.raised.estimator_package if trial.raised else ""
    if not package or package in KNOWN:
        return ""
    return (
        f"The estimator is of the package {package}, which may have changed since: in packageUris, give the "
        "release that the model was made with."
    )


def _count(trials: Sequence[Trial]) -> str:
    along = sum(trial.comes_along for trial in trials)
    made_up = len(trials) - along
    parts = [f"{made_up} made-up"] * bool(made_up) + [f"{along} recorded"] * bool(along)
    total = "instance" if len(trials) == 1 else "instances"
    return f"{' and '.join(parts)} {total}"


def _reason(trial: Trial) -> str:
    text = str(trial.raised)
    return text if text.endswith(".") else f"{text}."
