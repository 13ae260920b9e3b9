"""The candidates for XGBoost's models: its own in-place prediction, and treelite's interpreter.

XGBoost predicts blocks of 64 rows, with a fixed cost per call; the interpreter goes row by row, without it.

Both give XGBoost's bits, if they do the same additions in the same order. XGBoost begins a sum with the base
score and adds leaf by leaf; treelite adds the base score at the end. So the model it is given has no base
score, but begins with a tree that is one leaf of that value.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xgboost as xgb
from numpy.typing import NDArray

from serving.acceleration.candidates import Candidate, UnsuitableCandidate
from serving.acceleration.xgboost.inplace_predict import make_inplace_predict
from serving.acceleration.xgboost.verification_rows import TreeNodes

Answer = NDArray[Any]


@dataclass(frozen=True, slots=True)
class BoosterPredictSpec:
    """What a runtime asks of its booster: which rounds of trees (0, 0: all), what number besides NaN stands
    for a missing value, and what is made of the answer."""

    booster: Any
    width: int
    rounds: tuple[int, int] = (0, 0)
    missing: float = math.nan
    finish: Callable[[Answer], Answer] | None = None


def list_candidates(call: BoosterPredictSpec) -> tuple[Candidate, ...]:
    """The candidates for a booster of trees."""
    return (
        Candidate("in place", lambda: _build_inplace(call)),
        Candidate(
            "treelite",
            lambda: _TreeliteCandidate(call, convert_to_treelite(call)),
            save=lambda candidate, path: candidate.save(path),
            restore=lambda path: _restore_treelite(call, path),
        ),
    )


@dataclass(frozen=True, slots=True)
class _FunctionCandidate:
    name: str
    call: Callable[[Answer], Answer]
    finish: Callable[[Answer], Answer] | None

    def predict(self, rows: Any, /) -> Answer:
        answer = self.call(rows)
        return answer if self.finish is None else self.finish(answer)


def _build_inplace(call: BoosterPredictSpec) -> _FunctionCandidate:
    predict = make_inplace_predict(call.booster, call.rounds, call.missing, call.width)
    return _FunctionCandidate("in place", predict, call.finish)


class _TreeliteCandidate:
    name = "treelite"

    def __init__(self, call: BoosterPredictSpec, model: Any) -> None:
        from serving.acceleration.xgboost import treelite_gtil  # noqa: PLC0415  loaded where it is used

        self._model = model
        self._call = treelite_gtil.make_gtil_predict(model)
        self._finish = call.finish
        example = np.zeros((2, call.width))
        wanted = call.booster.inplace_predict(
            example, iteration_range=call.rounds, missing=call.missing, validate_features=False
        )
        answer = self._call(example)
        if answer.size != wanted.size or answer.dtype != wanted.dtype:
            raise UnsuitableCandidate("treelite answers with numbers of another kind")
        self._row_shape = wanted.shape[1:]

    def predict(self, rows: Any, /) -> Answer:
        answer = self._call(rows).reshape(len(rows), *self._row_shape)
        return answer if self._finish is None else self._finish(answer)

    def save(self, path: Path) -> None:
        self._model.serialize(path)


def _restore_treelite(call: BoosterPredictSpec, path: Path) -> _TreeliteCandidate:
    import treelite  # noqa: PLC0415  loaded where it is used

    return _TreeliteCandidate(call, treelite.Model.deserialize(path))


# ---- the model for treelite


def convert_to_treelite(call: BoosterPredictSpec) -> Any:
    """The booster as a treelite.Model that adds in XGBoost's order. Raises UnsuitableCandidate."""
    try:
        import treelite  # noqa: PLC0415  loaded where it is used
    except ImportError as error:
        raise UnsuitableCandidate("treelite is not installed") from error

    if not math.isnan(call.missing):
        raise UnsuitableCandidate(f"{call.missing} stands for a missing value")
    booster = call.booster[: call.rounds[1]] if call.rounds[1] else call.booster
    document = json.loads(booster.save_raw("json"))
    trees = _find_trees_model(document)["trees"]
    if not trees:
        raise UnsuitableCandidate("the model has no trees")
    if any(any(tree["split_type"]) for tree in trees):
        raise UnsuitableCandidate("trees that split by category")
    _prepend_leaf_trees(document, _predict_base_margins(document, call.width))
    try:
        model = treelite.frontend.from_xgboost_json(json.dumps(document))
    except treelite.TreeliteError as error:
        raise UnsuitableCandidate(f"treelite cannot read the model: {error}") from error
    if model.num_feature != call.width:
        raise UnsuitableCandidate("a model of unknown width")
    header = model.get_header_accessor()
    header.set_field("base_scores", np.zeros_like(header.get_field("base_scores")))
    return model


def read_trees(booster: Any) -> list[TreeNodes]:
    """The trees of a booster, for making verification rows."""
    return [
        TreeNodes(
            tree["split_indices"],
            tree["split_conditions"],
            tree["left_children"],
            tree["parents"],
            [not by_category for by_category in tree["split_type"]],
        )
        for tree in _find_trees_model(json.loads(booster.save_raw("json")))["trees"]
    ]


def _find_trees_model(document: Any) -> Any:
    booster = document["learner"]["gradient_booster"]
    return booster.get("gbtree", booster)["model"]  # dart keeps the trees one level deeper


def _predict_base_margins(document: Any, width: int) -> NDArray[np.float32]:
    """What the sums of a model begin with: the margin of the same model with a tree that adds nothing."""
    learner = document["learner"]
    bare = json.loads(
        json.dumps({**document, "learner": {**learner, "gradient_booster": _build_zero_booster(document)}})
    )
    booster = xgb.Booster(model_file=bytearray(json.dumps(bare).encode()))
    matrix = xgb.DMatrix(np.zeros((1, width)))
    margin: NDArray[np.float32] = booster.predict(matrix, output_margin=True, validate_features=False)
    return margin.ravel()


def _build_zero_booster(document: Any) -> Any:
    booster = document["learner"]["gradient_booster"]
    parameters = _find_trees_model(document)["gbtree_model_param"]
    model = {
        **_find_trees_model(document),
        "gbtree_model_param": {**parameters, "num_trees": "1"},
        # Not without trees: XGBoost 3.1 and later would answer the base score without its link.
        "trees": [_make_leaf_tree(_find_trees_model(document)["trees"][0], 0.0)],
        "tree_info": [0],
        "iteration_indptr": [0, 1],
    }
    if "gbtree" in booster:
        return {**booster, "gbtree": {**booster["gbtree"], "model": model}, "weight_drop": [1.0]}
    return {**booster, "model": model}


def _prepend_leaf_trees(document: Any, base: Sequence[float] | NDArray[np.float32]) -> None:
    """Put a tree of one leaf before the others, for each of the groups that the model sums up."""
    if not np.any(base):
        return
    booster, model = document["learner"]["gradient_booster"], _find_trees_model(document)
    count = len(base)
    model["trees"][:0] = [_make_leaf_tree(model["trees"][0], float(value)) for value in base]
    model["tree_info"][:0] = range(count)
    model["gbtree_model_param"]["num_trees"] = str(len(model["trees"]))
    model["iteration_indptr"] = [0, *(begin + count for begin in model["iteration_indptr"])]
    if "weight_drop" in booster:
        booster["weight_drop"][:0] = itertools.repeat(1.0, count)


def _make_leaf_tree(pattern: Any, value: float) -> Any:
    return {
        **pattern,
        "base_weights": [value],
        "default_left": [0],
        "left_children": [-1],
        "right_children": [-1],
        "loss_changes": [0.0],
        "parents": [2**31 - 1],
        "split_conditions": [value],
        "split_indices": [0],
        "split_type": [0],
        "sum_hessian": [0.0],
        "tree_param": {**pattern["tree_param"], "num_nodes": "1"},
    }
