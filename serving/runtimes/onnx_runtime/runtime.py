"""ONNX models: `model.onnx`, with its files of weights beside it, computed by onnxruntime.

The answers are those of `InferenceSession(file).run(None, inputs)`. Inputs and outputs have the names, types
and shapes that the graph declares. Inputs with a default are no inputs here: they keep it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime
from numpy.typing import NDArray

from serving.errors import InvalidInputs, InvalidOutputs
from serving.model_schema import DEFAULT_SIGNATURE, ModelSchema, ModelSignature, TensorSpec
from serving.runtimes import ColumnsFormat, LoadSpec
from serving.runtimes.framework_detection import find_model_file
from serving.runtimes.instance_batch import Batch, WholeTensors
from serving.runtimes.onnx_runtime.framework import FRAMEWORK
from serving.runtimes.onnx_runtime.graph_tensors import GraphTensors, describe_tensors
from serving.runtimes.onnx_runtime.session import open_session, run_session
from serving.runtimes.prediction_methods import SIGNATURE_NAME
from serving.runtimes.schema_inference import (
    chain_lazily,
    find_answered_example,
    first_instance_to_json,
    round_for_display,
)
from serving.runtimes.tensor_signature import Arrays, TensorSignature

_OBJECT = np.dtype(object)


# The tiny model, y = x · [0.5, -1]: float rows of two numbers to rows of one. Writing it anew takes the
# package onnx, which nodes do not need.
_TINY_MODEL = (
    "CAc6YAoRCgF4CgF3EgF5IgZNYXRNdWwSBHRpbnkqEwgCCAEQASIIAAAAPwAAgL9CAXdaFwoBeBISChAIARIMCgYSBHJvd3MKAggCYhcKAXkS"
    "EgoQCAESDAoGEgRyb3dzCgIIAUIECgAQDQ=="
)


def load_model(spec: LoadSpec) -> OnnxRuntime:
    """Load `model.onnx`. Raises LoadFailed with a sentence that says what to do."""
    file = find_model_file(spec.model_dir, FRAMEWORK)
    session = open_session(file, spec.threads)
    return OnnxRuntime(OnnxSignature(session, describe_tensors(session, file)))


class OnnxSignature(TensorSignature):
    """The one way to call an ONNX model.

    Scores of labels are a column for each label; `labels` are these by output, once it has answered.
    """

    def __init__(self, session: Any, tensors: GraphTensors) -> None:
        super().__init__("The model", tensors.inputs, tensors.outputs)
        self.labels: dict[str, tuple[int | str, ...]] = {}
        self._session = session
        self._label_scores = tensors.label_scores

    def compute_outputs(self, values: list[Any]) -> Iterator[tuple[str, Any, np.dtype[Any]]]:
        """The outputs as the graph gives them, texts as bytes."""
        feeds = {
            spec.name: _decode_texts(spec.name, value) if spec.dtype == _OBJECT else value
            for spec, value in zip(self.inputs, values, strict=True)
        }
        for spec, value in zip(self.outputs, run_session(self._session, feeds), strict=True):
            if spec.name in self._label_scores:
                yield spec.name, self._stack_scores(spec.name, value), spec.dtype
            else:
                yield spec.name, _encode_texts(value) if spec.dtype == _OBJECT else value, spec.dtype

    def _stack_scores(self, name: str, rows: Sequence[Mapping[int | str, float]]) -> NDArray[np.float32]:
        """A row of scores for each row, in the order of its labels, which are the same for all."""
        if rows:
            self.labels.setdefault(name, tuple(rows[0]))
        labels = self.labels.get(name, ())
        if any(len(row) != len(labels) for row in rows):
            raise InvalidOutputs(f"The rows of output {name} do not all have the same labels.")
        try:
            scores = [[row[label] for label in labels] for row in rows]
        except KeyError as error:
            raise InvalidOutputs(f"A row of output {name} has no score for {error}.") from error
        return np.array(scores, np.float32).reshape(len(rows), len(labels))


class OnnxRuntime:
    """A loaded ONNX model: named columns in, named columns out.

    Rows count as independent where every input and output has an open first dimension.
    """

    framework = FRAMEWORK
    exact = False
    warnings: tuple[str, ...] = ()

    def __init__(self, signature: OnnxSignature) -> None:
        self._signature = signature
        self.mergeable = signature.independent_rows

    def input_format(self, parameters: Mapping[str, Any]) -> ColumnsFormat:
        """One column per input. There is one signature, which may be named; other parameters mean nothing."""
        _check_signature_name(parameters)
        if self._signature.input_problem:
            raise InvalidInputs(self._signature.input_problem)
        return self._signature.input_format

    def predict(self, instances: Arrays | WholeTensors, /, **parameters: Any) -> Batch:
        """The outputs by name: columns for columns, tensors as they are for tensors as they are."""
        _check_signature_name(parameters)
        if isinstance(instances, WholeTensors):
            return WholeTensors(self._signature.predict_tensors(instances.values))
        return self._signature.predict(instances)

    def make_synthetic_rows(self, count: int) -> Arrays | None:
        """Made-up instances, the same at every call; unknown dimensions count as 1."""
        return self._signature.make_synthetic_rows(count)

    def warmup_requests(self) -> tuple[()]:
        """None: ONNX models carry no recorded requests."""
        return ()

    def infer_schema(self, examples: Sequence[Any] = ()) -> ModelSchema:
        """The inputs and outputs as the graph declares them, and the labels that have scores."""
        rows = self._signature.fixed_rows or 1
        answered = find_answered_example(self, chain_lazily(examples, self.make_example_instances), rows=rows)
        return ModelSchema(
            FRAMEWORK.platform,
            {DEFAULT_SIGNATURE: self._describe_signature()},
            example=answered and answered.instance,
            answer=answered and answered.answer,
        )

    def describe_versions(self) -> str:
        """Which onnxruntime computes it."""
        return f"This server has onnxruntime {onnxruntime.__version__}."

    def make_example_instances(self) -> Iterator[Any]:
        """A made-up instance, unless an input is of unknown rank."""
        if (made := self.make_synthetic_rows(1)) is not None:
            yield first_instance_to_json({name: round_for_display(column) for name, column in made.items()})

    def _describe_signature(self) -> ModelSignature:
        schema = self._signature.schema
        return msgspec.structs.replace(schema, outputs=tuple(self._describe_outputs(schema.outputs)))

    def _describe_outputs(self, outputs: Iterable[TensorSpec]) -> Iterator[TensorSpec]:
        for output in outputs:
            labels = self._signature.labels.get(output.name)
            yield (
                msgspec.structs.replace(output, shape=(-1, len(labels)), classes=labels) if labels else output
            )


def _check_signature_name(parameters: Mapping[str, Any]) -> None:
    name = parameters.get(SIGNATURE_NAME)
    if name not in (None, "", DEFAULT_SIGNATURE):
        raise InvalidInputs(
            f"No signature found for signature key {name}. An ONNX model has one only: {DEFAULT_SIGNATURE}."
        )


def _decode_texts(name: str, texts: NDArray[Any]) -> NDArray[Any]:
    """Bytes as the texts that onnxruntime takes."""
    decoded = np.empty(texts.shape, object)
    try:
        decoded.reshape(-1)[:] = [text.decode() for text in texts.reshape(-1).tolist()]
    except UnicodeDecodeError as error:
        raise InvalidInputs(f"Input {name} takes texts in UTF-8: {error}.") from error
    return decoded


def _encode_texts(texts: NDArray[Any]) -> NDArray[Any]:
    encoded = np.empty(texts.shape, object)
    encoded.reshape(-1)[:] = [text.encode() for text in texts.reshape(-1).tolist()]
    return encoded


def write_tiny_model(folder: Path) -> None:
    """Write one to a folder, for the warm-up of spare nodes. Raises OSError."""
    (folder / "model.onnx").write_bytes(base64.b64decode(_TINY_MODEL))
