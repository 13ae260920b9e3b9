"""What the inputs of a scikit-learn estimator are called and hold, as far as its fitted parts tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from serving.predictor.program import width_of
from serving.runtimes.datatypes import BYTES
from serving.runtimes.describing import COLUMN, INSTANCES, labels, readable
from serving.runtimes.frames import made_up
from serving.runtimes.sklearn_anatomy import Anatomy, first_step, tags_of
from serving.schema import TensorSpec

# What is tried where nothing tells how many values a row has.
_WIDEST = 65


@dataclass(frozen=True, slots=True)
class Feature:
    """A column of the inputs: a value that it can have, and the categories it was fitted on, if any."""

    value: Any = 0.0
    categories: tuple[Any, ...] = ()

    def tensor(self, name: str) -> TensorSpec:
        """The column as an input of its own."""
        kind = BYTES if isinstance(self.value, str) else "BOOL" if isinstance(self.value, bool) else "FP64"
        return TensorSpec(name, kind, (-1,), classes=self.categories)


def inputs(anatomy: Anatomy) -> tuple[TensorSpec, ...]:
    """The columns by name where the estimator has names or mixed columns, else one array or a text."""
    width = anatomy.width
    if anatomy.text:
        return (TensorSpec(INSTANCES, BYTES, (-1,)),)
    if width is None:
        return (TensorSpec(INSTANCES, BYTES, None),)
    if anatomy.numeric and not anatomy.names:
        return (TensorSpec(INSTANCES, "FP64", (-1, width)),)
    known = features(anatomy.estimator)
    if not known and not anatomy.names:
        return (TensorSpec(INSTANCES, "FP64", (-1, width)),)
    names = anatomy.names or tuple(f"{COLUMN}{place}" for place in range(width))
    return tuple(known.get(place, Feature()).tensor(name) for place, name in enumerate(names))


def instances(anatomy: Anatomy) -> Iterator[Any]:
    """Made-up instances that the estimator may answer, the likeliest first."""
    if anatomy.text:
        yield "some text"
    elif anatomy.width is not None:
        yield from _of_width(anatomy, anatomy.width)
    else:
        yield from _dictionary(first_step(anatomy.estimator))
        # Those of old versions do not say how wide they are in today's way.
        if not anatomy.builtin:
            return
        if (width := width_of(anatomy.estimator)) is not None:
            yield from _of_width(anatomy, width)
        elif not anatomy.trees:  # which would read what is behind a row that is too short
            yield from ([0.5] * width for width in range(1, _WIDEST))


def _of_width(anatomy: Anatomy, width: int) -> Iterator[Any]:
    if anatomy.numeric:
        for values in (readable(made_up(1, width))[0], np.zeros(width), np.ones(width)):
            yield _row(values.tolist(), anatomy.names)
    else:
        known = features(anatomy.estimator)
        yield _row([known.get(place, Feature()).value for place in range(width)], anatomy.names)
        for value in (0.0, "some text"):
            yield _row([known.get(place, Feature(value)).value for place in range(width)], anatomy.names)


def features(estimator: Any) -> Mapping[int, Feature]:
    """What is known of the columns of an estimator's input, by their places."""
    first = first_step(estimator)
    found: dict[int, Feature] = {}
    if type(first).__name__ == "ColumnTransformer":
        places: Mapping[str, Any] = getattr(first, "_transformer_to_input_indices", {})
        for name, transformer, chosen in first.transformers_:
            columns = places.get(name, chosen)
            if not isinstance(columns, list | np.ndarray) or not all(map(_is_place, columns)):
                continue
            for place, feature in _of_columns(transformer, len(columns)).items():
                found.setdefault(int(columns[place]), feature)
        return found
    if (inner := getattr(first, "_preprocessor", None)) is not None:  # gradient boosting with categories
        return features(inner)
    return _of_columns(first, getattr(first, "n_features_in_", 0))


def _of_columns(transformer: Any, width: int) -> dict[int, Feature]:
    """What a transformer of so many columns tells of them."""
    first = first_step(transformer)
    if type(first).__name__ == "ColumnTransformer":
        return dict(features(first))
    tags = tags_of(first)
    if tags is not None and tags.text:
        return {0: Feature("some text")}
    categories = getattr(first, "categories_", None)
    if isinstance(categories, list):
        return {place: feature for place, of in enumerate(categories) if (feature := _category(of))}
    statistics = getattr(first, "statistics_", None)  # of an imputer
    if isinstance(statistics, np.ndarray) and len(statistics) == width:
        return {place: Feature(value) for place, value in enumerate(statistics.tolist()) if _is_value(value)}
    return {}


def _category(categories: object) -> Feature | None:
    known = tuple(value for value in labels(categories) if _is_value(value))
    if known:
        return Feature(known[0], known)
    more = categories.tolist()[:1] if isinstance(categories, np.ndarray) else []
    return Feature(more[0]) if more and _is_value(more[0]) else None


def _is_place(column: object) -> bool:
    return isinstance(column, int | np.integer) and not isinstance(column, bool)


def _is_value(value: object) -> bool:
    return isinstance(value, str | bool | int) or (isinstance(value, float) and np.isfinite(value))


def _dictionary(vectorizer: Any) -> Iterator[dict[str, Any]]:
    """A row for what takes features by name, each as often as it likes."""
    names = getattr(vectorizer, "feature_names_", None)
    if isinstance(names, list) and names:
        row: dict[str, Any] = {}
        for name in names:
            feature, separator, value = str(name).partition(getattr(vectorizer, "separator", "="))
            row.setdefault(feature, value if separator else 1.0)
        yield row


def _row(values: list[Any], names: tuple[str, ...]) -> Any:
    return dict(zip(names, values, strict=True)) if names else values
