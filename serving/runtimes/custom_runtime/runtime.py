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

from serving.errors import InvalidOutputs, InvalidUserCode, ModelFailed, describe_exception
from serving.model_schema import DEFAULT_SIGNATURE, ModelSchema, ModelSignature, TensorSpec
from serving.predictor.program import install_old_joblib
from serving.runtimes import LoadSpec, RowsFormat
from serving.runtimes.custom_runtime.framework import FRAMEWORK
from serving.runtimes.instance_batch import Batch
from serving.runtimes.prediction_methods import check_arguments, list_arguments
from serving.runtimes.schema_inference import (
    INSTANCES,
    AnsweredExample,
    find_answered_example,
    infer_output,
    infer_tensor,
    untyped_tensor,
)
from serving.runtimes.user_packages import add_to_import_path

_PREDICT_SIGNATURE = "def predict(self, instances, **kwargs)"


class CustomRuntime:
    """A custom prediction routine. Nothing is assumed of it: its requests are never merged."""

    framework = FRAMEWORK
    mergeable = False
    exact = True
    warnings: tuple[str, ...] = ()

    def __init__(self, predictor: Any, name: str) -> None:
        self._predictor = predictor
        self._name = name
        self._known_arguments = list_arguments(predictor.predict)

    def input_format(self, parameters: Mapping[str, Any]) -> RowsFormat:
        """Plain values, as the class would have got them from AI Platform."""
        self._check_arguments(parameters)
        return RowsFormat()

    def predict(self, instances: Any, /, **parameters: Any) -> Batch:
        """What the class returns. Raises ModelFailed when it raises, InvalidOutputs if it is not a list."""
        arguments = self._check_arguments(parameters)
        try:
            result = self._predictor.predict(instances, **arguments)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # sys.exit, and panics of libraries written in Rust
            text = f"Exception during custom prediction: {describe_exception(error)}"
            raise ModelFailed(text) from error
        return _check_predictions(result, len(instances))

    def make_synthetic_rows(self, count: int) -> None:
        """None: only the class knows what its instances look like."""

    def warmup_requests(self) -> tuple[()]:
        """None: the contract records no requests for custom routines."""
        return ()

    def infer_schema(self, examples: Sequence[Any] = ()) -> ModelSchema:
        """No more than the first of the examples that it answers tells: nothing is made up for it, since
        nobody knows what its code does with it."""
        answered = find_answered_example(self, examples)
        return ModelSchema(
            FRAMEWORK.platform,
            {DEFAULT_SIGNATURE: ModelSignature(_infer_inputs(answered), (infer_output(answered),))},
            strict=False,
            example=answered and answered.instance,
            answer=answered and answered.answer,
        )

    def _check_arguments(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        if self._known_arguments is None:
            return dict(parameters)  # signature_name too: all extra fields are the routine's
        return check_arguments(parameters, self._known_arguments, self._name)


def load_model(spec: LoadSpec) -> CustomRuntime:
    """Find the class, check its shape and build it.

    Raises InvalidUserCode with a sentence that says what to do.
    """
    add_to_import_path(spec.packages)
    install_old_joblib()
    name = spec.prediction_class
    if not name:
        raise InvalidUserCode(
            "A custom prediction routine needs its class: set predictionClass to module.Class."
        )
    routine = _import_routine(name)
    _check_interface(routine, name)
    try:
        predictor = routine.from_path(str(spec.model_dir))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        text = f"{name}.from_path failed: {describe_exception(error)}{_error_location(error)}"
        raise InvalidUserCode(text) from error
    if not callable(getattr(predictor, "predict", None)):
        returned = type(predictor).__name__
        raise InvalidUserCode(f"{name}.from_path returned {returned}, which has no predict method.")
    return CustomRuntime(predictor, name)


def _infer_inputs(answered: AnsweredExample | None) -> tuple[TensorSpec, ...]:
    if answered is None:
        return (untyped_tensor(INSTANCES),)
    if isinstance(answered.instance, dict):
        return tuple(infer_tensor(str(name), [value]) for name, value in answered.instance.items())
    return (infer_tensor(INSTANCES, [answered.instance]),)


def _import_routine(name: str) -> Any:
    try:
        routine = pydoc.locate(name)
    except (pydoc.ErrorDuringImport, SystemExit) as error:
        raise InvalidUserCode(f"{name} cannot be imported: {_import_error_message(error)}") from error
    if routine is None:
        raise InvalidUserCode(_not_found_message(name))
    return routine


def _import_error_message(error: BaseException) -> str:
    cause = error.value if isinstance(error, pydoc.ErrorDuringImport) else error
    assert isinstance(cause, BaseException)  # noqa: S101  pydoc does not type it
    if isinstance(cause, ModuleNotFoundError):
        return f"{cause}. Package that module too, or name its archive in packageUris."
    return f"{describe_exception(cause)}{_error_location(cause)}"


def _not_found_message(name: str) -> str:
    module, _, attribute = name.rpartition(".")
    if not module:
        return f"{name} cannot be found: predictionClass must be module.Class."
    if pydoc.locate(module) is None:
        return (
            f"{name} cannot be found: no package has the module {module}. "
            "Name the archive that holds it in packageUris."
        )
    return f"{name} cannot be found: the module {module} has no {attribute}."


def _check_interface(routine: Any, name: str) -> None:
    for method in ("from_path", "predict"):
        if not callable(getattr(routine, method, None)):
            raise InvalidUserCode(f"{name} has no method {method}. {_interface_hint()}")
    named = [
        one.name
        for one in inspect.signature(routine.predict).parameters.values()
        if one.kind not in {one.VAR_KEYWORD, one.VAR_POSITIONAL}
    ]
    if named != ["self", "instances"]:
        raise InvalidUserCode(f"{name}.predict takes ({', '.join(named)}). {_interface_hint()}")


def _interface_hint() -> str:
    return (
        f"A custom prediction routine has a class method from_path(cls, model_dir) and {_PREDICT_SIGNATURE}: "
        "extra fields of a request come in kwargs, no other argument may be named."
    )


def _check_predictions(result: object, count: int) -> Batch:
    if isinstance(result, tuple):
        result = list(result)
    if not isinstance(result, list) and not (isinstance(result, np.ndarray) and result.ndim):
        kind = type(result).__name__
        raise InvalidOutputs(f"The custom predict must return a list or an array, not {kind}.")
    if len(result) < count:
        raise InvalidOutputs(f"The custom predict returned {len(result)} predictions for {count} instances.")
    return result


def _error_location(error: BaseException) -> str:
    """Where in the user's code it happened: file and line, without the folders of this machine."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    file = frames[-1].filename.replace("\\", "/").rpartition("/")[2]
    return f" ({file}, line {frames[-1].lineno})"
