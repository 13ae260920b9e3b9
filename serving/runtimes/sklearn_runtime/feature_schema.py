"""What the inputs of a scikit-learn estimator are called and hold, as far as its fitted parts tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from serving.model_schema import TensorSpec
from serving.predictor.program import count_features
from serving.runtimes.datatypes import BYTES
from serving.runtimes.feature_rows import make_numeric_rows
from serving.runtimes.schema_inference import COLUMN_PREFIX, INSTANCES, list_labels, round_for_display
from serving.runtimes.sklearn_runtime.estimator_inspection import (
    EstimatorInspection,
    find_first_step,
    read_tags,
)

# What is tried where nothing tells how many values a row has.
_MAX_TRIED_WIDTH = 65


@dataclass(frozen=True, slots=True)
class InputFeature:
    """A column of the inputs: a value that it can have, and the categories it was fitted on, if any."""

    value: Any = 0.0
    categories: tuple[Any, ...] = ()

    def to_tensor_spec(self, name: str) -> TensorSpec:
        """The column as an input of its own."""
        kind = BYTES if isinstance(self.value, str) else "BOOL" if isinstance(self.value, bool) else "FP64"
        return TensorSpec(name, kind, (-1,), classes=self.categories)


def infer_inputs(inspection: EstimatorInspection) -> tuple[TensorSpec, ...]:
    """The columns by name where the estimator has names or mixed columns, else one array or a text."""
    width = inspection.width
    if inspection.takes_text:
        return (TensorSpec(INSTANCES, BYTES, (-1,)),)
    if width is None:
        return (TensorSpec(INSTANCES, BYTES, None),)
    if inspection.takes_numbers and not inspection.feature_names:
        return (TensorSpec(INSTANCES, "FP64", (-1, width)),)
    known = infer_column_domains(inspection.estimator)
    if not known and not inspection.feature_names:
        return (TensorSpec(INSTANCES, "FP64", (-1, width)),)
    names = inspection.feature_names or tuple(f"{COLUMN_PREFIX}{place}" for place in range(width))
    return tuple(known.get(place, InputFeature()).to_tensor_spec(name) for place, name in enumerate(names))


def make_example_instances(inspection: EstimatorInspection) -> Iterator[Any]:
    """Made-up instances that the estimator may answer, the likeliest first."""
    if inspection.takes_text:
        yield "some text"
    elif inspection.width is not None:
        yield from _make_rows(inspection, inspection.width)
    else:
        yield from _make_vectorizer_rows(find_first_step(inspection.estimator))
        # Those of old versions do not say how wide they are in today's way.
        if not inspection.is_library_code:
            return
        if (width := count_features(inspection.estimator)) is not None:
            yield from _make_rows(inspection, width)
        elif not inspection.has_trees:  # which would read what is behind a row that is too short
            yield from ([0.5] * width for width in range(1, _MAX_TRIED_WIDTH))


def _make_rows(inspection: EstimatorInspection, width: int) -> Iterator[Any]:
    if inspection.takes_numbers:
        for values in (round_for_display(make_numeric_rows(1, width))[0], np.zeros(width), np.ones(width)):
            yield _make_row(values.tolist(), inspection.feature_names)
    else:
        known = infer_column_domains(inspection.estimator)
        yield _make_row(
            [known.get(place, InputFeature()).value for place in range(width)], inspection.feature_names
        )
        for value in (0.0, "some text"):
            yield _make_row(
                [known.get(place, InputFeature(value)).value for place in range(width)],
                inspection.feature_names,
            )


def infer_column_domains(estimator: Any) -> Mapping[int, InputFeature]:
    """What is known of the columns of an estimator's input, by their places."""
    first = find_first_step(estimator)
    found: dict[int, InputFeature] = {}
    if type(first).__name__ == "ColumnTransformer":
        places: Mapping[str, Any] = getattr(first, "_transformer_to_input_indices", {})
        for name, transformer, chosen in first.transformers_:
            columns = places.get(name, chosen)
            if not isinstance(columns, list | np.ndarray) or not all(map(_is_column_index, columns)):
                continue
            for place, feature in _infer_transformer_features(transformer, len(columns)).items():
                found.setdefault(int(columns[place]), feature)
        return found
    if (inner := getattr(first, "_preprocessor", None)) is not None:  # gradient boosting with categories
        return infer_column_domains(inner)
    return _infer_transformer_features(first, getattr(first, "n_features_in_", 0))


def _infer_transformer_features(transformer: Any, width: int) -> dict[int, InputFeature]:
    """What a transformer of so many columns tells of them."""
    first = find_first_step(transformer)
    if type(first).__name__ == "ColumnTransformer":
        return dict(infer_column_domains(first))
    tags = read_tags(first)
    if tags is not None and tags.text:
        return {0: InputFeature("some text")}
    categories = getattr(first, "categories_", None)
    if isinstance(categories, list):
        return {place: feature for place, of in enumerate(categories) if (feature := _infer_categories(of))}
    statistics = getattr(first, "statistics_", None)  # of an imputer
    if isinstance(statistics, np.ndarray) and len(statistics) == width:
        return {
            place: InputFeature(value)
            for place, value in enumerate(statistics.tolist())
            if _is_json_value(value)
        }
    return {}


def _infer_categories(categories: object) -> InputFeature | None:
    known = tuple(value for value in list_labels(categories) if _is_json_value(value))
    if known:
        return InputFeature(known[0], known)
    more = categories.tolist()[:1] if isinstance(categories, np.ndarray) else []
    return InputFeature(more[0]) if more and _is_json_value(more[0]) else None


def _is_column_index(column: object) -> bool:
    return isinstance(column, int | np.integer) and not isinstance(column, bool)


def _is_json_value(value: object) -> bool:
    return isinstance(value, str | bool | int) or (isinstance(value, float) and np.isfinite(value))


def _make_vectorizer_rows(vectorizer: Any) -> Iterator[dict[str, Any]]:
    """A row for what takes features by name, each as often as it likes."""
    names = getattr(vectorizer, "feature_names_", None)
    if isinstance(names, list) and names:
        row: dict[str, Any] = {}
        for name in names:
            feature, separator, value = str(name).partition(getattr(vectorizer, "separator", "="))
            row.setdefault(feature, value if separator else 1.0)
        yield row


def _make_row(values: list[Any], names: tuple[str, ...]) -> Any:
    return dict(zip(names, values, strict=True)) if names else values
