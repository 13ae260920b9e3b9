"""What a model takes and answers: found out by asking it, once, when its version is made."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import orjson
from numpy.typing import NDArray

from serving.runtimes import Runtime
from serving.runtimes.codec import encode
from serving.runtimes.conversion import from_rows, natural
from serving.runtimes.datatypes import BYTES, name_of
from serving.runtimes.instances import Batch
from serving.schema import DEFAULT_SIGNATURE, ModelSchema, ModelSignature, TensorSpec

logger = logging.getLogger(__name__)

# An instance that comes with a model, as a request would have it: the only way to tell of a routine that may
# take anything.
EXAMPLE = "example.json"

# What inputs and outputs are called that have no names, and what columns: this and their places.
INSTANCES, PREDICTIONS, COLUMN = "instances", "predictions", "column-"

_LONGEST_EXAMPLE = 1 << 20
# Made-up instances with more numbers than these are all zeros, and so a short text once they are compressed.
_MOST_NUMBERS = 256


class Shown(NamedTuple):
    """An instance that was predicted, what a client is told, and what the runtime gave."""

    instance: Any
    answer: Any
    predictions: Batch


def describe(runtime: Runtime, model_dir: Path) -> ModelSchema:
    """The schema of a model that was loaded from a folder. What goes wrong costs details, not the model."""
    try:
        schema = runtime.schema(own_examples(model_dir))
        msgspec.json.encode(schema)  # names and labels of the model may be text that UTF-8 cannot carry
    except Exception:
        logger.warning("the inputs and outputs of the model cannot be told", exc_info=True)
        return unknown(runtime.framework.lower())
    return schema


def unknown(platform: str) -> ModelSchema:
    """The schema of a model of which nothing is known."""
    return ModelSchema(
        platform, {DEFAULT_SIGNATURE: ModelSignature((anything(INSTANCES),), (outcome(),))}, strict=False
    )


def show(runtime: Runtime, instances: Iterable[Any], *, rows: int = 1) -> Shown | None:
    """The first instance that the model answers, in a request with so many of it; None if it answers none."""
    for instance in instances:
        try:
            batch = from_rows([instance] * rows, runtime.form({}))
            predictions = runtime.predict(batch)
            answer = orjson.loads(encode(predictions))[PREDICTIONS][0]
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # there may be code of a user in it
            logger.info("the model does not answer an instance that was tried: %s", error)
            continue
        return Shown(instance, answer, predictions)
    return None


def first(candidates: Sequence[Any], others: Callable[[], Iterable[Any]]) -> Iterable[Any]:
    """These, then others that are made when it comes to them."""
    yield from candidates
    yield from others()


def tensor_of(name: str, values: Batch, classes: tuple[Any, ...] = ()) -> TensorSpec:
    """What such values are, the number of rows apart."""
    if isinstance(values, list):
        array = natural(values)
        if array is None:
            return TensorSpec(name, BYTES, None, classes=classes)
    else:
        array = np.asarray(values)
    return TensorSpec(name, name_of(array.dtype), (-1, *array.shape[1:]), classes=classes)


def outcome(
    shown: Shown | None = None, classes: tuple[Any, ...] = (), *, of_labels: bool = True
) -> TensorSpec:
    """The output of a model without named ones, as an answer tells, or its labels if it is `of_labels`."""
    if shown is not None:
        return tensor_of(PREDICTIONS, shown.predictions, classes)
    if classes and of_labels:
        return tensor_of(PREDICTIONS, list(classes), classes)
    return anything(PREDICTIONS)


def anything(name: str) -> TensorSpec:
    """What is text or JSON, of any shape."""
    return TensorSpec(name, BYTES, None)


def labels(given: object) -> tuple[Any, ...]:
    """The labels of one target as JSON has them; none where they are too many, or something else."""
    if not isinstance(given, np.ndarray) or given.ndim != 1 or len(given) > _MOST_NUMBERS:
        return ()
    values: list[Any] = given.tolist()
    return tuple(values) if all(isinstance(value, str | int | float) for value in values) else ()


def readable(made_up: NDArray[Any]) -> NDArray[Any]:
    """Made-up rows with values that a person may read: few digits, and nothing but zeros if they are many."""
    if made_up.dtype.kind == "O":
        return made_up
    if made_up[:1].size > _MOST_NUMBERS:
        return np.zeros_like(made_up)
    return made_up if made_up.dtype.kind in "biu" else np.round(made_up.astype(np.float64), 1)


def to_json(column: NDArray[Any]) -> Any:
    """The first row as requests have it: text where it is text, other bytes as base64."""
    if column.dtype.kind == "O":
        return _text(column[:1].tolist()[0])
    return orjson.loads(encode(column[:1]))[PREDICTIONS][0]


def _text(value: Any) -> Any:
    if isinstance(value, list):
        return [_text(element) for element in value]
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(value).decode()}


def own_examples(model_dir: Path) -> tuple[Any, ...]:
    """What the owner of a model says can be asked of it."""
    file = model_dir / EXAMPLE
    if not file.is_file():
        return ()
    try:
        with file.open("rb") as stream:
            # Of a longer one this is no JSON.
            return (orjson.loads(stream.read(_LONGEST_EXAMPLE)),)
    except (OSError, ValueError) as error:
        logger.warning("%s is not used: %s", EXAMPLE, error)
        return ()
