"""Prediction methods: `predict`, and the other methods of a library that predict row by row."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from serving.errors import InvalidInputs, InvalidOutputs
from serving.model_schema import TensorSpec
from serving.predictor.program import METHODS, PredictorError, normalize_rows
from serving.runtimes import Runtime
from serving.runtimes.input_conversion import convert_instances
from serving.runtimes.schema_inference import PREDICTIONS, AnsweredExample, infer_tensor, untyped_tensor

# Chooses a signature of a SavedModel. Clients send it whatever the framework, so it is never an error.
SIGNATURE_NAME = "signature_name"


def list_arguments(predict: Callable[..., Any], *, excluding: Iterable[str] = ()) -> frozenset[str] | None:
    """The keyword arguments a bound `predict` takes after the instances, None when it takes any."""
    arguments = list(inspect.signature(predict).parameters.values())[1:]
    if any(one.kind is one.VAR_KEYWORD for one in arguments):
        return None
    return frozenset(one.name for one in arguments if one.kind is not one.VAR_POSITIONAL) - frozenset(
        excluding
    )


def check_arguments(
    parameters: Mapping[str, Any], known: frozenset[str] | None, owner: str, method: str = "predict"
) -> dict[str, Any]:
    """The parameters to call with. Raises InvalidInputs naming those that `owner` does not know."""
    if not parameters:
        return {}
    arguments = {name: value for name, value in parameters.items() if name != SIGNATURE_NAME}
    if known is None or arguments.keys() <= known:
        return arguments
    unknown = ", ".join(f"'{name}'" for name in arguments if name not in known)
    takes = f"it takes {', '.join(sorted(known))}" if known else "it takes none"
    raise InvalidInputs(f"The {method} of {owner} does not take the request field {unknown}; {takes}.")


logger = logging.getLogger(__name__)

METHOD_PARAMETER = "method"
"""The parameter that names it."""
PREDICT_METHOD = METHODS[0]

# Parameters with which a request shares no call: nobody has tried whether answers then stay equal, and some
# are of the rows to each other.
UNBATCHED_PARAMETERS = frozenset({METHOD_PARAMETER, "return_std", "return_cov"})
# Those whose answers are labels, or have a column for each of them.
CLASS_METHODS = frozenset({PREDICT_METHOD, "predict_proba", "predict_log_proba", "decision_function"})

# A method, or the names of outputs, each a method; JSON has no tuples.
MethodSelection = str | tuple[str, ...]


@runtime_checkable
class MultiMethodRuntime(Protocol):
    """A runtime that can be asked several methods."""

    @property
    def method(self) -> str:
        """The usual one."""

    @property
    def methods(self) -> Sequence[str]:
        """All of them; none for custom routines."""


def read_requested_methods(
    parameters: Mapping[str, Any], default_method: str, methods: Collection[str], owner: str
) -> tuple[MethodSelection, Mapping[str, Any]]:
    """What is asked, and the parameters without that. Raises InvalidInputs naming the methods there are."""
    if METHOD_PARAMETER not in parameters:
        return default_method, parameters
    asked = parameters[METHOD_PARAMETER]
    rest = {name: value for name, value in parameters.items() if name != METHOD_PARAMETER}
    for name in asked if isinstance(asked, tuple) else (asked,):
        if name not in methods and not (isinstance(asked, tuple) and name == PREDICTIONS):
            raise InvalidInputs(
                f"There is no method of {owner} called {name!r}; it has {', '.join(methods)}."
            )
    return asked, rest


def to_prediction_rows(result: Any, count: int, method: str) -> Any:
    """What a method answered, with a row for each instance. Raises InvalidOutputs."""
    if type(result) is np.ndarray and result.ndim and len(result) == count:
        return result
    try:
        return normalize_rows(result, count, method)
    except PredictorError as error:
        raise InvalidOutputs(str(error)) from error


def infer_method_outputs(
    runtime: Runtime, methods: MultiMethodRuntime, answered: AnsweredExample | None, classes: tuple[Any, ...]
) -> tuple[TensorSpec, ...]:
    """What the other methods of a runtime answer, named after them; `answered` is an instance to ask them."""
    found = []
    for name in methods.methods:
        if name == methods.method:
            continue
        if answered is None:
            found.append(untyped_tensor(name))
            continue
        try:
            answer = runtime.predict(
                convert_instances([answered.instance], runtime.input_format({})), method=name
            )
        except Exception as error:  # it has the method, but not for this model
            logger.info("the method %s of the model does not answer: %s", name, error)
            continue
        found.append(infer_tensor(name, answer, classes if name in CLASS_METHODS else ()))
    return tuple(found)
