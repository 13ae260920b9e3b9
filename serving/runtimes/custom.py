"""A user's own predictor: `from_path(model_dir)` and `predict(instances, **kwargs)`.

Source: section 3.5 of the AI Platform contract.
"""

from __future__ import annotations

import inspect
import pydoc
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from serving.errors import InvalidOutputs, ModelFailed, UserCodeFailed, describe_exception
from serving.predictor.program import offer_old_joblib
from serving.runtimes import Rows, Source
from serving.runtimes.arguments import accepted, checked
from serving.runtimes.describing import INSTANCES, Shown, anything, outcome, show, tensor_of
from serving.runtimes.instances import Batch
from serving.runtimes.packages import use_packages
from serving.schema import DEFAULT_SIGNATURE, ModelSchema, ModelSignature, TensorSpec

_EXPECTED = "def predict(self, instances, **kwargs)"


class CustomRuntime:
    """A custom prediction routine. Nothing is assumed of it: its requests are never merged."""

    framework = "CUSTOM"
    mergeable = False
    exact = True
    warnings: tuple[str, ...] = ()

    def __init__(self, predictor: Any, name: str) -> None:
        self._predictor = predictor
        self._name = name
        self._known = accepted(predictor.predict)

    def form(self, parameters: Mapping[str, Any]) -> Rows:
        """Plain values, as the class would have got them from AI Platform."""
        self._arguments(parameters)
        return Rows()

    def predict(self, instances: Any, /, **parameters: Any) -> Batch:
        """What the class returns. Raises ModelFailed when it raises, InvalidOutputs if it is not a list."""
        arguments = self._arguments(parameters)
        try:
            result = self._predictor.predict(instances, **arguments)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # sys.exit, and panics of libraries written in Rust
            text = f"Exception during custom prediction: {describe_exception(error)}"
            raise ModelFailed(text) from error
        return _checked(result, len(instances))

    def samples(self, count: int) -> None:
        """None: only the class knows what its instances look like."""

    def warmup_requests(self) -> tuple[()]:
        """None: the contract records no requests for custom routines."""
        return ()

    def schema(self, examples: Sequence[Any] = ()) -> ModelSchema:
        """No more than the first of the examples that it answers tells: nothing is made up for it, since
        nobody knows what its code does with it."""
        shown = show(self, examples)
        return ModelSchema(
            "custom",
            {DEFAULT_SIGNATURE: ModelSignature(_inputs(shown), (outcome(shown),))},
            strict=False,
            example=shown and shown.instance,
            answer=shown and shown.answer,
        )

    def _arguments(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        if self._known is None:
            return dict(parameters)  # signature_name too: all extra fields are the routine's
        return checked(parameters, self._known, self._name)


def load(source: Source) -> CustomRuntime:
    """Find the class, check its shape and build it.

    Raises UserCodeFailed with a sentence that says what to do.
    """
    use_packages(source.packages)
    offer_old_joblib()
    name = source.prediction_class
    if not name:
        raise UserCodeFailed(
            "A custom prediction routine needs its class: set predictionClass to module.Class."
        )
    routine = _located(name)
    _check_shape(routine, name)
    try:
        predictor = routine.from_path(str(source.model_dir))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        text = f"{name}.from_path failed: {describe_exception(error)}{_place(error)}"
        raise UserCodeFailed(text) from error
    if not callable(getattr(predictor, "predict", None)):
        returned = type(predictor).__name__
        raise UserCodeFailed(f"{name}.from_path returned {returned}, which has no predict method.")
    return CustomRuntime(predictor, name)


def _inputs(shown: Shown | None) -> tuple[TensorSpec, ...]:
    if shown is None:
        return (anything(INSTANCES),)
    if isinstance(shown.instance, dict):
        return tuple(tensor_of(str(name), [value]) for name, value in shown.instance.items())
    return (tensor_of(INSTANCES, [shown.instance]),)


def _located(name: str) -> Any:
    try:
        routine = pydoc.locate(name)
    except (pydoc.ErrorDuringImport, SystemExit) as error:
        raise UserCodeFailed(f"{name} cannot be imported: {_import_problem(error)}") from error
    if routine is None:
        raise UserCodeFailed(_not_found(name))
    return routine


def _import_problem(error: BaseException) -> str:
    cause = error.value if isinstance(error, pydoc.ErrorDuringImport) else error
    assert isinstance(cause, BaseException)  # noqa: S101  pydoc does not type it
    if isinstance(cause, ModuleNotFoundError):
        return f"{cause}. Package that module too, or name its archive in packageUris."
    return f"{describe_exception(cause)}{_place(cause)}"


def _not_found(name: str) -> str:
    module, _, attribute = name.rpartition(".")
    if not module:
        return f"{name} cannot be found: predictionClass must be module.Class."
    if pydoc.locate(module) is None:
        return (
            f"{name} cannot be found: no package has the module {module}. "
            "Name the archive that holds it in packageUris."
        )
    return f"{name} cannot be found: the module {module} has no {attribute}."


def _check_shape(routine: Any, name: str) -> None:
    for method in ("from_path", "predict"):
        if not callable(getattr(routine, method, None)):
            raise UserCodeFailed(f"{name} has no method {method}. {_form()}")
    named = [
        one.name
        for one in inspect.signature(routine.predict).parameters.values()
        if one.kind not in {one.VAR_KEYWORD, one.VAR_POSITIONAL}
    ]
    if named != ["self", "instances"]:
        raise UserCodeFailed(f"{name}.predict takes ({', '.join(named)}). {_form()}")


def _form() -> str:
    return (
        f"A custom prediction routine has a class method from_path(cls, model_dir) and {_EXPECTED}: "
        "extra fields of a request come in kwargs, no other argument may be named."
    )


def _checked(result: object, count: int) -> Batch:
    if isinstance(result, tuple):
        result = list(result)
    if not isinstance(result, list) and not (isinstance(result, np.ndarray) and result.ndim):
        kind = type(result).__name__
        raise InvalidOutputs(f"The custom predict must return a list or an array, not {kind}.")
    if len(result) < count:
        raise InvalidOutputs(f"The custom predict returned {len(result)} predictions for {count} instances.")
    return result


def _place(error: BaseException) -> str:
    """Where in the user's code it happened: file and line, without the folders of this machine."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    file = frames[-1].filename.replace("\\", "/").rpartition("/")[2]
    return f" ({file}, line {frames[-1].lineno})"
