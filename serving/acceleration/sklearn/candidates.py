"""The candidates for scikit-learn's estimators.

Nothing of the library is imported here that loading the estimator has not imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from serving.acceleration.candidates import BuiltCandidate, Candidate, Predict, UnsuitableCandidate
from serving.acceleration.sklearn import linear_models, pipeline_steps, tree_ensembles

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
class FunctionCandidate:
    predict: Predict


def list_candidates(estimator: Any, *, takes_nan: bool) -> Sequence[Candidate]:
    """The candidates for an estimator that takes arrays; none if its last step is unknown.

    `takes_nan` says whether the last step takes NaN.
    """
    transformers, last = split_pipeline(estimator)
    return tuple(
        Candidate(name, partial(_build_candidate, transformers, last, make, takes_nan))
        for name, make in _list_strategies(last)
    )


def accepts_nan(estimator: Any, *, takes_nan: bool) -> bool:
    """Whether the candidates accept rows with NaN; `takes_nan` says whether the last step does."""
    transformers, _ = split_pipeline(estimator)
    try:
        return pipeline_steps.steps_accept_nan(
            [pipeline_steps.build_step(one) for one in transformers], takes_nan
        )
    except UnsuitableCandidate:
        return False


def split_pipeline(estimator: Any) -> tuple[list[Any], Any]:
    """The transformers in their order, and the step that predicts."""
    kind = f"{type(estimator).__module__}.{type(estimator).__qualname__}"
    if kind in _SEARCHES and hasattr(estimator, "best_estimator_"):
        return split_pipeline(estimator.best_estimator_)
    if kind != _PIPELINE:
        return [], estimator
    *before, (_, end) = estimator.steps
    first, last = split_pipeline(end)
    return [*_flatten_transformers(one for _, one in before), *first], last


def _flatten_transformers(transformers: Iterable[Any]) -> Iterator[Any]:
    """Those that do something, with pipelines among them replaced by their steps."""
    for one in transformers:
        if one is not None and one != "passthrough":
            before, last = split_pipeline(one)
            yield from (*before, last)


def _list_strategies(last: Any) -> Sequence[tuple[str, Callable[[Any], Predict]]]:
    kind = tree_ensembles.find_ensemble_kind(last)
    if kind is not None:
        return kind.list_strategies(last)
    return (("matrix product", linear_models.make_linear_predict),) if linear_models.is_linear(last) else ()


def _build_candidate(
    transformers: Sequence[Any], last: Any, make: Callable[[Any], Predict], takes_nan: bool
) -> BuiltCandidate:
    if "predict" in vars(last):
        raise UnsuitableCandidate(f"{type(last).__name__} overrides predict")
    return FunctionCandidate(
        pipeline_steps.chain_steps(
            [pipeline_steps.build_step(one) for one in transformers], make(last), takes_nan=takes_nan
        )
    )
