"""Classify and regress: examples in, labels with scores or numbers out, as TensorFlow Serving has them.

A signature for it takes serialised tf.Example messages as its one input.
Source: classifier.cc and regressor.cc of TensorFlow Serving.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.errors import FailedPrecondition, InvalidInputs, InvalidOutputs
from serving.model_schema import ModelSignature
from serving.node.codecs import ServedModel
from serving.node.codecs.tensor_mapping import find_signature, tensors_to_batch
from serving.runtimes.datatypes import BYTES
from serving.runtimes.instance_batch import Batch

# What contexts may add to the examples of a request, in bytes: each gets all of it.
_MAX_CONTEXT_BYTES = 16 << 20

CLASSIFY, REGRESS = "classify", "regress"
CLASSES, SCORES, OUTPUTS = "classes", "scores", "outputs"

Arrays = Mapping[str, NDArray[Any]]
ScoredLabels = list[tuple[bytes, float]]


def examples_to_batch(
    model: ServedModel, verb: str, signature: str, examples: Sequence[bytes]
) -> tuple[Batch, dict[str, Any]]:
    """Serialised examples as a signature ("": the default one) takes them, and the parameters that choose it.

    Raises InvalidInputs, or FailedPrecondition for a model that takes no examples.
    """
    name = find_examples_input(model, verb, signature)
    if not examples:
        raise InvalidInputs("Input is empty: there are no examples.")
    column = np.empty(len(examples), object)
    column[:] = examples
    return tensors_to_batch(model, {name: column}, signature)


def check_context_size(size: int, count: int) -> None:
    """Raise InvalidInputs if a context of so many bytes is too long to be put into so many examples."""
    if size * count > _MAX_CONTEXT_BYTES:
        raise InvalidInputs(
            f"The context has {size} bytes, and is to be in each of {count} examples: it can add "
            f"{_MAX_CONTEXT_BYTES >> 20} MiB to a request. Send fewer examples at a time."
        )


def find_examples_input(model: ServedModel, verb: str, signature: str) -> str:
    """The name of the input of a signature that can classify, or regress. Raises as `examples_to_batch`."""
    require_tensorflow_model(model, verb)
    found = find_signature(model, signature)
    problem = _find_problem(verb, found)
    if problem:
        raise InvalidInputs(f"Signature {signature or model.schema.default} cannot {verb}: {problem}")
    return found.inputs[0].name


def require_tensorflow_model(model: ServedModel, verb: str) -> None:
    """Raises FailedPrecondition for a model that takes no examples."""
    if not model.runtime.framework.served_by_tensorflow_serving:
        raise FailedPrecondition(
            f"Only TensorFlow models can {verb}: it takes tf.Example messages, which this model cannot read. "
            "Use predict."
        )


def _find_problem(verb: str, signature: ModelSignature) -> str:
    """Why a signature cannot do it, "" if it can."""
    if len(signature.inputs) != 1 or signature.inputs[0].datatype != BYTES:
        taken = ", ".join(f"{one.name} ({one.datatype})" for one in signature.inputs) or "none"
        return f"it would have to take serialised examples as its one input; its inputs are {taken}."
    names = {one.name for one in signature.outputs}
    answered = ", ".join(sorted(names))
    if verb == CLASSIFY and not (names <= {CLASSES, SCORES} and names):
        return f"its outputs would have to be {CLASSES}, {SCORES}, or both; they are {answered}."
    if verb == REGRESS and names != {OUTPUTS}:
        return f"its one output would have to be {OUTPUTS}; its outputs are {answered}."
    return ""


def extract_labels_and_scores(answer: Arrays, count: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Labels and scores of the classes of each of `count` examples, b"" or 0 where a model has none.

    Both have the shape [examples, classes]. Raises InvalidOutputs for outputs of another shape.
    """
    labels, scores = answer.get(CLASSES), answer.get(SCORES)
    shapes = {array.shape for array in (labels, scores) if array is not None}
    if len(shapes) != 1 or (shape := shapes.pop())[:1] != (count,) or len(shape) != 2:
        raise InvalidOutputs(_shape_message(answer, f"[{count}, number of classes]"))
    if labels is not None and labels.dtype.kind != "O":
        raise InvalidOutputs(f"Output {CLASSES} must be of texts; it is of {labels.dtype}.")
    if scores is not None and scores.dtype.kind != "f":
        raise InvalidOutputs(f"Output {SCORES} must be of floats; it is of {scores.dtype}.")
    return (
        np.full(shape, b"", object) if labels is None else labels,
        np.zeros(shape, np.float32) if scores is None else scores,
    )


def extract_classifications(answer: Arrays, count: int) -> list[ScoredLabels]:
    """Label and score of each class, for each of `count` examples.

    Raises as `extract_labels_and_scores` does.
    """
    labels, scores = extract_labels_and_scores(answer, count)
    return [list(zip(*row, strict=True)) for row in zip(labels.tolist(), scores.tolist(), strict=True)]


def extract_regressions(answer: Arrays, count: int) -> NDArray[Any]:
    """The number for each of `count` examples. Raises InvalidOutputs for outputs of another shape."""
    values = answer[OUTPUTS]
    if values.shape not in ((count,), (count, 1)):
        raise InvalidOutputs(_shape_message(answer, f"[{count}] or [{count}, 1]"))
    if values.dtype.kind != "f":
        raise InvalidOutputs(f"Output {OUTPUTS} must be of floats; it is of {values.dtype}.")
    return values.reshape(-1)


def _shape_message(answer: Arrays, wanted: str) -> str:
    found = ", ".join(f"{name} {list(array.shape)}" for name, array in answer.items())
    return f"The shape of outputs must be {wanted}; they are: {found}."
