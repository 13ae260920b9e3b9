"""Infers the schema of a model by predicting an example, once, when its version is created."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import orjson
from numpy.typing import NDArray

from serving.model_schema import DEFAULT_SIGNATURE, ModelSchema, ModelSignature, TensorSpec
from serving.runtimes import Runtime
from serving.runtimes.datatypes import BYTES, datatype_of
from serving.runtimes.input_conversion import convert_instances, to_regular_array
from serving.runtimes.instance_batch import Batch
from serving.runtimes.json_codec import encode_predictions

logger = logging.getLogger(__name__)

# An instance that comes with a model, as a request would have it: the only way to tell of a routine that may
# take anything.
EXAMPLE_FILE = "example.json"

# What inputs and outputs are called that have no names, and what columns: this and their places.
INSTANCES, PREDICTIONS, COLUMN_PREFIX = "instances", "predictions", "column-"

_MAX_EXAMPLE_BYTES = 1 << 20
# Made-up instances with more numbers than these are all zeros, and so a short text once they are compressed.
_MAX_EXAMPLE_NUMBERS = 256


class AnsweredExample(NamedTuple):
    """An instance that was predicted, what a client is told, and what the runtime gave."""

    instance: Any
    answer: Any
    predictions: Batch


def infer_model_schema(runtime: Runtime, model_dir: Path) -> ModelSchema:
    """The schema of a model that was loaded from a folder. What goes wrong costs details, not the model."""
    try:
        schema = runtime.infer_schema(read_examples(model_dir))
        msgspec.json.encode(schema)  # names and labels of the model may be text that UTF-8 cannot carry
    except Exception:
        logger.warning("the schema of the model cannot be inferred", exc_info=True)
        return unknown_schema(runtime.framework.platform)
    return schema


def unknown_schema(platform: str) -> ModelSchema:
    """The schema of a model of which nothing is known."""
    return ModelSchema(
        platform,
        {DEFAULT_SIGNATURE: ModelSignature((untyped_tensor(INSTANCES),), (infer_output(),))},
        strict=False,
    )


def find_answered_example(
    runtime: Runtime, instances: Iterable[Any], *, rows: int = 1
) -> AnsweredExample | None:
    """The first instance that the model answers, in a request with so many of it; None if it answers none."""
    for instance in instances:
        try:
            batch = convert_instances([instance] * rows, runtime.input_format({}))
            predictions = runtime.predict(batch)
            answer = orjson.loads(encode_predictions(predictions))[PREDICTIONS][0]
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # there may be code of a user in it
            logger.info("the model failed on a trial instance: %s", error)
            continue
        return AnsweredExample(instance, answer, predictions)
    return None


def chain_lazily(candidates: Sequence[Any], make_others: Callable[[], Iterable[Any]]) -> Iterable[Any]:
    """These, then others that are made when it comes to them."""
    yield from candidates
    yield from make_others()


def infer_tensor(name: str, values: Batch, classes: tuple[Any, ...] = ()) -> TensorSpec:
    """What such values are, the number of rows apart."""
    if isinstance(values, list):
        array = to_regular_array(values)
        if array is None:
            return TensorSpec(name, BYTES, None, classes=classes)
    else:
        array = np.asarray(values)
    return TensorSpec(name, datatype_of(array.dtype), (-1, *array.shape[1:]), classes=classes)


def infer_output(
    answered: AnsweredExample | None = None, classes: tuple[Any, ...] = (), *, answers_labels: bool = True
) -> TensorSpec:
    """The output of a model without named ones, inferred from an answer, or from its classes if the model
    `answers_labels`."""
    if answered is not None:
        return infer_tensor(PREDICTIONS, answered.predictions, classes)
    if classes and answers_labels:
        return infer_tensor(PREDICTIONS, list(classes), classes)
    return untyped_tensor(PREDICTIONS)


def untyped_tensor(name: str) -> TensorSpec:
    """What is text or JSON, of any shape."""
    return TensorSpec(name, BYTES, None)


def list_labels(classes: object) -> tuple[Any, ...]:
    """The labels of one target as JSON has them; none where they are too many, or something else."""
    if not isinstance(classes, np.ndarray) or classes.ndim != 1 or len(classes) > _MAX_EXAMPLE_NUMBERS:
        return ()
    values: list[Any] = classes.tolist()
    return tuple(values) if all(isinstance(value, str | int | float) for value in values) else ()


def round_for_display(rows: NDArray[Any]) -> NDArray[Any]:
    """Made-up rows with values that a person may read: few digits, and nothing but zeros if they are many."""
    if rows.dtype.kind == "O":
        return rows
    if rows[:1].size > _MAX_EXAMPLE_NUMBERS:
        return np.zeros_like(rows)
    return rows if rows.dtype.kind in "biu" else np.round(rows.astype(np.float64), 1)


def first_instance_to_json(columns: Mapping[str, NDArray[Any]]) -> Any:
    """The first row of named inputs as an AI Platform request has it: bare if there is one input."""
    values = {name: first_row_to_json(column) for name, column in columns.items()}
    return next(iter(values.values())) if len(values) == 1 else values


def first_row_to_json(column: NDArray[Any]) -> Any:
    """The first row as requests have it: text where it is text, other bytes as base64."""
    if column.dtype.kind == "O":
        return _bytes_to_json(column[:1].tolist()[0])
    return orjson.loads(encode_predictions(column[:1]))[PREDICTIONS][0]


def _bytes_to_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_bytes_to_json(element) for element in value]
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(value).decode()}


def read_examples(model_dir: Path) -> tuple[Any, ...]:
    """What the owner of a model says can be asked of it."""
    file = model_dir / EXAMPLE_FILE
    if not file.is_file():
        return ()
    try:
        with file.open("rb") as stream:
            # Of a longer one this is no JSON.
            return (orjson.loads(stream.read(_MAX_EXAMPLE_BYTES)),)
    except (OSError, ValueError) as error:
        logger.warning("%s is not used: %s", EXAMPLE_FILE, error)
        return ()
