"""Models that are computed by another interpreter, with the library versions that it has.

The node is as for every other model; in place of the library it has a predictor process, which loads the
files and answers calls (`serving.predictor`). SavedModels need no old interpreter: the TensorFlow here serves
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from serving.errors import (
    InvalidInputs,
    InvalidOutputs,
    InvalidUserCode,
    LoadFailed,
    ModelFailed,
    ServingError,
)
from serving.frameworks import Framework
from serving.model_schema import DEFAULT_SIGNATURE, ModelSchema, ModelSignature, TensorSpec
from serving.predictor.program import Message, decode_batch, encode_batch
from serving.runtimes import (
    ArrayFormat,
    ExternalInterpreter,
    InputFormat,
    LoadSpec,
    RowsFormat,
    feature_rows,
    pickle_loading,
)
from serving.runtimes.external.predictor_process import PredictorProcess
from serving.runtimes.framework_detection import find_model_file
from serving.runtimes.instance_batch import Batch
from serving.runtimes.model_check import RaisedException, RemoteException
from serving.runtimes.prediction_methods import (
    CLASS_METHODS,
    METHOD_PARAMETER,
    PREDICT_METHOD,
    MethodSelection,
    check_arguments,
    infer_method_outputs,
    read_requested_methods,
)
from serving.runtimes.schema_inference import (
    INSTANCES,
    PREDICTIONS,
    chain_lazily,
    find_answered_example,
    infer_output,
    infer_tensor,
    round_for_display,
    untyped_tensor,
)

# Our errors by the kinds of a predictor's errors.
_ERRORS: Mapping[str, type[ServingError]] = {
    "load": LoadFailed,
    "code": InvalidUserCode,
    "inputs": InvalidInputs,
    "outputs": InvalidOutputs,
    "model": ModelFailed,
}


class ExternalRuntime:
    """A model in a predictor process; `about` is the process's description of the model in `file`."""

    def __init__(
        self,
        predictor: PredictorProcess,
        framework: Framework,
        about: Mapping[str, Any],
        file: Path,
        method: str,
    ) -> None:
        self.framework = framework
        self._file = file
        self._predictor = predictor
        self._owner = str(about["owner"])
        self.methods: tuple[str, ...] = tuple(about.get("methods", ()))
        self.method = method
        known = about.get("arguments") or {method: about["parameters"]}
        self._known_arguments = {
            name: None if arguments is None else frozenset(map(str, arguments))
            for name, arguments in known.items()
        }
        self._names: tuple[str, ...] = tuple(about.get("names", ()))
        self._width: int | None = about.get("width")
        self._classes: tuple[Any, ...] = tuple(about.get("classes", ()))
        self._numeric = bool(about.get("numeric"))
        self._text = bool(about.get("text"))
        self._by_name = bool(about.get("by_name"))
        self.mergeable = bool(about.get("independent"))
        self.exact = bool(about.get("exact", True))
        self._form: InputFormat = (
            ArrayFormat(self._width, bool(about.get("nullable")), bool(self._names))
            if self._numeric
            else RowsFormat()
        )
        libraries = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
        self._library_version = str(about["versions"].get("".join(framework.distributions[:1]), ""))
        self.libraries = f"Python {about['python']}" + (f" with {libraries}" if libraries else "")
        self.warnings = tuple(map(str, about["warnings"]))

    def input_format(self, parameters: Mapping[str, Any]) -> InputFormat:
        """One array where numbers are all that the model takes, else plain rows."""
        self._resolve_method(parameters)
        return self._form

    def predict(self, instances: Any, /, **parameters: Any) -> Batch:
        """What the predictor answers. Raises Unavailable when it ends instead."""
        head: dict[str, Any] = {}
        selected, arguments = self._resolve_method(parameters)
        if isinstance(selected, tuple):
            several = {name: self.method if name == PREDICTIONS else name for name in selected}
            return {
                name: self.predict(instances, **arguments, method=method)  # type: ignore[misc]
                for name, method in several.items()
            }
        if selected != self.method:
            arguments = {**arguments, METHOD_PARAMETER: selected}
        if arguments:
            head["parameters"] = arguments
        if isinstance(instances, list):
            named = feature_rows.starts_with_object(instances)
            if self._by_name or (named and (self._names or self._numeric)):
                instances, head["frame"] = feature_rows.to_feature_lists(instances, self._names), True
        more, body = encode_batch(instances)
        return _decode_result(self._predictor.send_request({**head, **more}, body))

    def close(self) -> None:
        self._predictor.close()

    def make_synthetic_rows(self, count: int) -> NDArray[np.float64] | None:
        """Numbers in the width of the model; None where the rows hold more than numbers."""
        return feature_rows.make_numeric_rows(count, self._width) if self._numeric and self._width else None

    def warmup_requests(self) -> tuple[()]:
        """None: only SavedModels carry recorded requests."""
        return ()

    def infer_schema(self, examples: Sequence[Any] = ()) -> ModelSchema:
        """What the predictor knows of the columns and labels, and what an example tells."""
        shown = find_answered_example(self, chain_lazily(examples, self.make_example_instances))
        if self.framework.runs_user_code and shown is not None:
            inputs: tuple[TensorSpec, ...] = (infer_tensor(INSTANCES, [shown.instance]),)
        else:
            inputs = self._input_tensors()
        classes = self._classes if self.method in CLASS_METHODS else ()
        found = infer_output(shown, classes, answers_labels=self.method == PREDICT_METHOD)
        return ModelSchema(
            self.framework.platform,
            {DEFAULT_SIGNATURE: ModelSignature(inputs, (found,))},
            method=self.method if self.methods else "",
            methods=infer_method_outputs(self, self, shown, self._classes),
            strict=self._numeric or self._text,
            example=shown and shown.instance,
            answer=shown and shown.answer,
        )

    def describe_versions(self) -> str:
        """What computes it, what has saved it, and the command that has that version compute it."""
        computed = f"It is computed by {self.libraries}."
        if not self.framework.tells_saved_version:
            return computed
        return f"{computed} {pickle_loading.describe_version_mismatch(self._file, self._library_version)}"

    def _input_tensors(self) -> tuple[TensorSpec, ...]:
        if self._text:
            return (TensorSpec(INSTANCES, "BYTES", (-1,)),)
        if self._numeric and self._names:
            return tuple(TensorSpec(name, "FP64", (-1,)) for name in self._names)
        return (
            (TensorSpec(INSTANCES, "FP64", (-1, self._width)),)
            if self._numeric and self._width
            else (untyped_tensor(INSTANCES),)
        )

    def make_example_instances(self) -> Sequence[Any]:
        """Made-up instances, the likeliest first; none for custom routines."""
        if self.framework.runs_user_code:
            return ()
        if self._text:
            return ("some text",)
        if self._width is None:
            return ()
        rows = [
            round_for_display(feature_rows.make_numeric_rows(1, self._width))[0].tolist(),
            [0.0] * self._width,
            [1.0] * self._width,
        ]
        if self._names:
            return [dict(zip(self._names, row, strict=True)) for row in rows]
        return rows

    def _resolve_method(self, parameters: Mapping[str, Any]) -> tuple[MethodSelection, dict[str, Any]]:
        """The method or methods, and their arguments. Raises InvalidInputs."""
        if not parameters:
            return self.method, {}
        if self.framework.runs_user_code:
            known = self._known_arguments[self.method]
            # All extra fields are the routine's.
            return self.method, dict(parameters) if known is None else check_arguments(
                parameters, known, self._owner
            )
        selected, rest = read_requested_methods(parameters, self.method, self.methods, self._owner)
        arguments: dict[str, Any] = {}
        for name in selected if isinstance(selected, tuple) else (selected,):
            method = self.method if name == PREDICTIONS else name
            arguments = check_arguments(rest, self._known_arguments[method], self._owner, method)
        return selected, arguments


def load(external: ExternalInterpreter, framework: Framework, source: LoadSpec) -> ExternalRuntime:
    """Start a predictor and have it load the model. Raises LoadFailed or InvalidUserCode."""
    name = "" if framework.runs_user_code else find_model_file(source.model_dir, framework).name
    load_request: dict[str, Any] = {
        "model_dir": str(source.model_dir),
        "framework": framework.predictor_loaders[name],
        "file": name,
        "packages": list(map(str, source.packages)),
        "prediction_class": source.prediction_class,
        "method": source.method,
    }
    predictor = PredictorProcess(external.interpreter, external.pilot)
    try:
        if external.on_start is not None:
            external.on_start(predictor.pid)
        head, _ = _check_answer(predictor.load_model(load_request))
    except ServingError as error:
        predictor.close()
        kind = InvalidUserCode if isinstance(error, InvalidUserCode) else LoadFailed
        raise kind(f"{error.message} It was loaded by {external.interpreter}.") from error
    if external.shared_fate:
        predictor.share_fate()
    file = source.model_dir / name
    return ExternalRuntime(predictor, framework, head["loaded"], file, source.method or PREDICT_METHOD)


def _decode_result(message: Message) -> Batch:
    head, body = _check_answer(message)
    result: Batch = decode_batch(head, body)
    return result


def _check_answer(message: Message) -> Message:
    if "error" in message[0]:
        _raise_error(message[0])
    return message


def _raise_error(head: Mapping[str, Any]) -> NoReturn:
    error = _ERRORS.get(head["kind"], ModelFailed)(head["error"])
    raised = head.get("raised")
    if raised is None:
        raise error
    raise error from RemoteException(
        RaisedException(raised["kind"], raised["text"], raised["library"], raised["package"])
    )
