"""What a model is asked: `predict`, or another of the methods that its library offers row by row."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from serving.errors import InvalidInputs, InvalidOutputs
from serving.predictor.program import METHODS, Refused, rows_of
from serving.runtimes import Runtime
from serving.runtimes.conversion import from_rows
from serving.runtimes.describing import PREDICTIONS, Shown, anything, tensor_of
from serving.schema import TensorSpec

logger = logging.getLogger(__name__)

METHOD = "method"
"""The parameter that names it."""
PREDICT = METHODS[0]

# Parameters with which a request shares no call: nobody has tried whether answers then stay equal, and some
# are of the rows to each other.
LONE = frozenset({METHOD, "return_std", "return_cov"})
# Those whose answers are labels, or have a column for each of them.
OF_CLASSES = frozenset({PREDICT, "predict_proba", "predict_log_proba", "decision_function"})

# A method, or the names of outputs, each a method; JSON has no tuples.
Asked = str | tuple[str, ...]


@runtime_checkable
class Methodical(Protocol):
    """A runtime that can be asked several methods."""

    @property
    def method(self) -> str:
        """The usual one."""

    @property
    def methods(self) -> Sequence[str]:
        """All of them; none for custom routines."""


def chosen(
    parameters: Mapping[str, Any], usual: str, methods: Collection[str], owner: str
) -> tuple[Asked, Mapping[str, Any]]:
    """What is asked, and the parameters without that. Raises InvalidInputs naming the methods there are."""
    if METHOD not in parameters:
        return usual, parameters
    asked = parameters[METHOD]
    rest = {name: value for name, value in parameters.items() if name != METHOD}
    for name in asked if isinstance(asked, tuple) else (asked,):
        if name not in methods and not (isinstance(asked, tuple) and name == PREDICTIONS):
            raise InvalidInputs(
                f"The {owner} cannot be asked for the method {name!r}; it has {', '.join(methods)}."
            )
    return asked, rest


def rows(result: Any, count: int, method: str) -> Any:
    """What a method answered, with a row for each instance. Raises InvalidOutputs."""
    if type(result) is np.ndarray and result.ndim and len(result) == count:
        return result
    try:
        return rows_of(result, count, method)
    except Refused as error:
        raise InvalidOutputs(str(error)) from error


def describe_methods(
    runtime: Runtime, asked: Methodical, shown: Shown | None, classes: tuple[Any, ...]
) -> tuple[TensorSpec, ...]:
    """What the other methods of a runtime answer, named after them; `shown` is an instance to ask them."""
    found = []
    for name in asked.methods:
        if name == asked.method:
            continue
        if shown is None:
            found.append(anything(name))
            continue
        try:
            answer = runtime.predict(from_rows([shown.instance], runtime.form({})), method=name)
        except Exception as error:  # it has the method, but not for this model
            logger.info("the method %s of the model does not answer: %s", name, error)
            continue
        found.append(tensor_of(name, answer, classes if name in OF_CLASSES else ()))
    return tuple(found)
