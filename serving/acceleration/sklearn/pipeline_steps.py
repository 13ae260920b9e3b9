"""The transformers of a pipeline without input checks: the library's own operations, in its order.

Each function makes a new array. If one returns NaN or infinity, the library predicts, and raises its own
error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from serving.acceleration.candidates import Predict, UnsuitableCandidate
from serving.runtimes.instance_batch import is_finite_float32

Transform = Callable[[NDArray[Any]], NDArray[Any]]


@dataclass(frozen=True, slots=True)
class PipelineStep:
    """A step of a pipeline: whether it passes NaN on, and whether it fills NaN."""

    transform: Transform
    passes_nan: bool = False
    fills_nan: bool = False


def build_step(transformer: Any) -> PipelineStep:
    """The step for a fitted transformer. Raises UnsuitableCandidate for an unknown one."""
    kind = type(transformer)
    make = _STEP_BUILDERS.get(f"{kind.__module__}.{kind.__qualname__}")
    if make is None or "transform" in vars(transformer):
        raise UnsuitableCandidate(f"an unknown step: {kind.__name__}")
    return make(transformer)


def chain_steps(steps: Sequence[PipelineStep], predict: Predict, *, takes_nan: bool) -> Predict:
    """Puts the steps before `predict`; `takes_nan` says whether that takes NaN.

    The result raises UnsuitableCandidate for rows that a step turns into values the library would reject.
    """
    if not steps:
        return predict
    # There is no NaN after the step that fills it.
    checks = [
        (one.transform, takes_nan and not any(earlier.fills_nan for earlier in steps[: index + 1]))
        for index, one in enumerate(steps)
    ]

    def predict_after_steps(rows: NDArray[Any]) -> Any:
        for transform, allow_nan in checks:
            rows = transform(rows)
            if not is_finite_float32(rows, allow_nan=allow_nan):
                raise UnsuitableCandidate("a step of the pipeline returns NaN or infinity")
        return predict(rows)

    return predict_after_steps


def steps_accept_nan(steps: Sequence[PipelineStep], takes_nan: bool) -> bool:
    """Whether the steps and what follows them accept rows with NaN; `takes_nan` says it of the latter."""
    for one in steps:
        if one.fills_nan:
            return True
        if not one.passes_nan:
            return False
    return takes_nan


def _standard_scaler(scaler: Any) -> PipelineStep:
    mean = scaler.mean_ if scaler.with_mean else None
    return _centering_step(mean, scaler.scale_ if scaler.with_std else None)


def _robust_scaler(scaler: Any) -> PipelineStep:
    center = scaler.center_ if scaler.with_centering else None
    return _centering_step(center, scaler.scale_ if scaler.with_scaling else None)


def _centering_step(center: NDArray[Any] | None, scale: NDArray[Any] | None) -> PipelineStep:
    def transform(rows: NDArray[Any]) -> NDArray[Any]:
        # The library computes with float64, whatever the scaler was fitted on.
        made = np.array(rows, np.float64) if center is None else rows - wide_center
        if scale is not None:
            made /= wide_scale
        return made

    wide_center, wide_scale = _to_float64(center), _to_float64(scale)
    return PipelineStep(transform, passes_nan=True)


def _to_float64(numbers: NDArray[Any] | None) -> Any:
    return None if numbers is None else numbers.astype(np.float64)


def _min_max_scaler(scaler: Any) -> PipelineStep:
    scale, lowest = _to_float64(scaler.scale_), _to_float64(scaler.min_)
    first, last = scaler.feature_range

    def transform(rows: NDArray[Any]) -> NDArray[Any]:
        made: NDArray[Any] = rows * scale
        made += lowest
        return made.clip(first, last, out=made) if scaler.clip else made

    return PipelineStep(transform, passes_nan=True)


def _max_abs_scaler(scaler: Any) -> PipelineStep:
    scale, clip = _to_float64(scaler.scale_), getattr(scaler, "clip", False)

    def transform(rows: NDArray[Any]) -> NDArray[Any]:
        made: NDArray[Any] = rows / scale
        return made.clip(-1.0, 1.0, out=made) if clip else made

    return PipelineStep(transform, passes_nan=True)


def _normalizer_step(normalizer: Any) -> PipelineStep:
    norm = _NORMS[normalizer.norm]
    smallest = 10 * np.finfo(np.float64).eps

    def transform(rows: NDArray[Any]) -> NDArray[Any]:
        wide = rows.astype(np.float64, copy=False)
        norms = norm(wide)
        norms[norms < smallest] = 1.0
        made: NDArray[Any] = wide / norms[:, None]
        return made

    return PipelineStep(transform)


_NORMS: Final[dict[str, Transform]] = {
    "l1": lambda rows: np.abs(rows).sum(axis=1),
    "l2": lambda rows: np.sqrt(np.einsum("ij,ij->i", rows, rows)),
    "max": lambda rows: np.abs(rows).max(axis=1),
}


def _simple_imputer(imputer: Any) -> PipelineStep:
    fill = imputer.statistics_
    missing = imputer.missing_values
    if not (isinstance(missing, float) and np.isnan(missing)):
        raise UnsuitableCandidate(f"a SimpleImputer for {missing!r}")
    if imputer.indicator_ is not None or not np.isfinite(fill.astype(np.float64)).all():
        raise UnsuitableCandidate("a SimpleImputer that adds or drops features")
    # These strategies keep integers as they are.
    keeps = imputer.strategy in {"most_frequent", "constant"}

    def transform(rows: NDArray[Any]) -> NDArray[Any]:
        if rows.dtype.kind == "i":
            return rows if keeps else rows.astype(np.float64)
        return np.where(np.isnan(rows), fill, rows)

    return PipelineStep(transform, passes_nan=True, fills_nan=True)


def _polynomial_features(features: Any) -> PipelineStep:
    powers = features.powers_
    if powers.sum(axis=1).max(initial=0) > 2 or features.order != "C":
        raise UnsuitableCandidate("polynomials of more than degree 2, or in columns")
    # Each output is the product of two columns, one of which may be the constant 1 after the last.
    width = powers.shape[1]
    pairs = np.array([[*np.repeat(np.arange(width), row), width, width][:2] for row in powers], np.intp)
    left, right = pairs.reshape(-1, 2).T

    def transform(rows: NDArray[Any]) -> NDArray[Any]:
        wide = np.ones((len(rows), width + 1))
        wide[:, :-1] = rows
        made: NDArray[Any] = wide.take(left, axis=1) * wide.take(right, axis=1)
        return made

    return PipelineStep(transform)


def _pca_step(pca: Any) -> PipelineStep:
    components = pca.components_.T
    offset = np.reshape(pca.mean_, (1, -1)) @ components
    scale = None
    if pca.whiten:
        scale = np.sqrt(pca.explained_variance_)
        scale = np.maximum(scale, np.finfo(scale.dtype).eps)

    def transform(rows: NDArray[Any]) -> NDArray[Any]:
        made: NDArray[Any] = rows.astype(np.float64, copy=False) @ components
        made -= offset
        if scale is not None:
            made /= scale
        return made

    return PipelineStep(transform)


def _feature_selection(selector: Any) -> PipelineStep:
    chosen = selector.get_support()

    def transform(rows: NDArray[Any]) -> NDArray[Any]:
        return rows[:, chosen]

    return PipelineStep(transform)


_STEP_BUILDERS: Final[dict[str, Callable[[Any], PipelineStep]]] = {
    "sklearn.preprocessing._data.StandardScaler": _standard_scaler,
    "sklearn.preprocessing._data.MinMaxScaler": _min_max_scaler,
    "sklearn.preprocessing._data.MaxAbsScaler": _max_abs_scaler,
    "sklearn.preprocessing._data.RobustScaler": _robust_scaler,
    "sklearn.preprocessing._data.Normalizer": _normalizer_step,
    "sklearn.preprocessing._polynomial.PolynomialFeatures": _polynomial_features,
    "sklearn.impute._base.SimpleImputer": _simple_imputer,
    "sklearn.decomposition._pca.PCA": _pca_step,
    "sklearn.feature_selection._variance_threshold.VarianceThreshold": _feature_selection,
    "sklearn.feature_selection._univariate_selection.SelectKBest": _feature_selection,
    "sklearn.feature_selection._univariate_selection.SelectPercentile": _feature_selection,
    "sklearn.feature_selection._from_model.SelectFromModel": _feature_selection,
}
