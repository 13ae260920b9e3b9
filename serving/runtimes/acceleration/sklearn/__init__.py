"""Faster equivalents of scikit-learn's estimators: which there are for an estimator, and how they are built.

Nothing of the library is imported here that the estimator at hand has not brought.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from serving.runtimes.acceleration import Candidate, Offer, Predict, Unsuitable
from serving.runtimes.acceleration.sklearn import linear, steps, trees

_PIPELINE = "sklearn.pipeline.Pipeline"
_SEARCHES = frozenset(
    {
        "sklearn.model_selection._search.GridSearchCV",
        "sklearn.model_selection._search.RandomizedSearchCV",
        "sklearn.model_selection._search_successive_halving.HalvingGridSearchCV",
        "sklearn.model_selection._search_successive_halving.HalvingRandomSearchCV",
    }
)


@dataclass(frozen=True, slots=True)
class Way:
    """A candidate."""

    predict: Predict


def offers(estimator: Any, *, missing: bool) -> Sequence[Offer]:
    """The ways to be tried for an estimator that takes arrays; none where it ends in something unknown.

    `missing` says whether the model at its end takes NaN.
    """
    transformers, last = parts(estimator)
    return tuple(
        Offer(name, partial(_build, transformers, last, make, missing)) for name, make in _ways(last)
    )


def takes_missing(estimator: Any, *, missing: bool) -> bool:
    """Whether rows with NaN may be handed to what is offered; `missing` is as above."""
    transformers, _ = parts(estimator)
    try:
        return steps.take_missing([steps.step(one) for one in transformers], missing)
    except Unsuitable:
        return False


def parts(estimator: Any) -> tuple[list[Any], Any]:
    """What transforms the rows, in order, and what predicts in the end."""
    kind = f"{type(estimator).__module__}.{type(estimator).__qualname__}"
    if kind in _SEARCHES and hasattr(estimator, "best_estimator_"):
        return parts(estimator.best_estimator_)
    if kind != _PIPELINE:
        return [], estimator
    *before, (_, end) = estimator.steps
    first, last = parts(end)
    return [*_flat(one for _, one in before), *first], last


def _flat(transformers: Iterable[Any]) -> Iterator[Any]:
    """Those that do something, and those inside of pipelines among them."""
    for one in transformers:
        if one is not None and one != "passthrough":
            before, last = parts(one)
            yield from (*before, last)


def _ways(last: Any) -> Sequence[tuple[str, Callable[[Any], Predict]]]:
    kind = trees.kind_of(last)
    if kind is not None:
        return kind.ways(last)
    return (("matrix product", linear.product),) if linear.is_linear(last) else ()


def _build(
    transformers: Sequence[Any], last: Any, make: Callable[[Any], Predict], missing: bool
) -> Candidate:
    if "predict" in vars(last):
        raise Unsuitable(f"{type(last).__name__} predicts in a way of its own")
    return Way(steps.behind([steps.step(one) for one in transformers], make(last), missing=missing))
