"""Models for the tests of dialects: a schema, and a runtime that says what it takes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from serving.frameworks import load_frameworks
from serving.model_schema import ModelSchema, ModelSignature, TensorSpec
from serving.node.codecs import ServedModel
from serving.runtimes import ArrayFormat, ColumnsFormat, ColumnSpec, InputFormat, RowsFormat
from serving.runtimes.datatypes import dtype_of
from serving.runtimes.instance_batch import Batch
from serving.runtimes.json_codec import InstancesDecoder
from serving.runtimes.prediction_methods import check_arguments


class Told:
    """A runtime of a framework that takes a form, and knows some parameters, or all."""

    mergeable = False
    exact = True
    warnings: tuple[str, ...] = ()

    def __init__(self, framework: str, form: InputFormat, knows: Collection[str] | None = None) -> None:
        self.framework = load_frameworks()[framework]
        self._form = form
        self._knows = None if knows is None else frozenset(knows)

    def input_format(self, parameters: Mapping[str, Any]) -> InputFormat:
        check_arguments(parameters, self._knows, self.framework.name)
        return self._form

    def predict(self, instances: Any, /, **parameters: Any) -> Batch:
        raise NotImplementedError

    def make_synthetic_rows(self, count: int) -> None:
        return None

    def warmup_requests(self) -> tuple[()]:
        return ()

    def infer_schema(self, examples: Sequence[Any] = ()) -> ModelSchema:
        raise NotImplementedError


class ToldWithMethods(Told):
    """One that may be asked several methods."""

    method = "predict"
    methods = ("predict", "predict_proba")


PREDICTIONS = (TensorSpec("predictions", "FP64", (-1,)),)


def of(
    framework: str, form: InputFormat, schema: ModelSchema, knows: Collection[str] | None = None
) -> ServedModel:
    """A model with this form and this schema."""
    return ServedModel(Told(framework, form, knows), schema, InstancesDecoder())


def booster(width: int = 3, knows: Collection[str] | None = None) -> ServedModel:
    """Rows of so many numbers."""
    signature = ModelSignature((TensorSpec("instances", "FP64", (-1, width)),), PREDICTIONS)
    schema = ModelSchema("xgboost_xgboost", {"serving_default": signature})
    return of("XGBOOST", ArrayFormat(width, nullable=True, allows_objects=True), schema, knows)


def classifier() -> ServedModel:
    """Rows of three numbers, of which there are probabilities too."""
    signature = ModelSignature((TensorSpec("instances", "FP64", (-1, 3)),), PREDICTIONS)
    schema = ModelSchema("scikit-learn_scikit-learn", {"serving_default": signature})
    runtime = ToldWithMethods("SCIKIT_LEARN", ArrayFormat(3, nullable=True), knows=("method",))
    return ServedModel(runtime, schema, InstancesDecoder())


def named(*names: str) -> ServedModel:
    """Rows of numbers with names."""
    inputs = tuple(TensorSpec(name, "FP64", (-1,)) for name in names)
    schema = ModelSchema("xgboost", {"serving_default": ModelSignature(inputs, PREDICTIONS)})
    return of("XGBOOST", ArrayFormat(len(names), nullable=True, allows_objects=True), schema)


def mixed(text: str = "city", number: str = "rooms") -> ServedModel:
    """Rows of a text and a number, by name."""
    inputs = (TensorSpec(text, "BYTES", (-1,)), TensorSpec(number, "FP64", (-1,)))
    schema = ModelSchema("sklearn_sklearn", {"serving_default": ModelSignature(inputs, PREDICTIONS)})
    return of("SCIKIT_LEARN", RowsFormat(), schema)


def texts() -> ServedModel:
    """One text per row."""
    signature = ModelSignature((TensorSpec("instances", "BYTES", (-1,)),), PREDICTIONS)
    return of("SCIKIT_LEARN", RowsFormat(), ModelSchema("sklearn_sklearn", {"serving_default": signature}))


def routine() -> ServedModel:
    """Anything."""
    signature = ModelSignature((TensorSpec("instances", "BYTES", (-1,)),), PREDICTIONS)
    schema = ModelSchema("custom", {"serving_default": signature}, strict=False)
    return of("CUSTOM", RowsFormat(), schema)


def graph(
    *inputs: TensorSpec,
    outputs: tuple[TensorSpec, ...] = (TensorSpec("y", "FP32", (-1,)),),
    **others: ModelSignature,
) -> ServedModel:
    """A SavedModel with these inputs, a second signature that takes one text, and others."""
    signatures = {
        "serving_default": ModelSignature(inputs, outputs),
        "say": ModelSignature((TensorSpec("text", "BYTES", (-1,)),), (TensorSpec("length", "INT64", (-1,)),)),
        **others,
    }
    return of(
        "TENSORFLOW",
        ColumnsFormat(tuple(map(_column, inputs))),
        ModelSchema("tensorflow_savedmodel", signatures),
    )


def _column(tensor: TensorSpec) -> ColumnSpec:
    sizes = None if tensor.shape is None else tuple(None if size < 0 else size for size in tensor.shape[1:])
    return ColumnSpec(tensor.name, dtype_of(tensor.datatype) or np.dtype(object), sizes)
