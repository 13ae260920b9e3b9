"""scikit-learn's trees and their ensembles without its checks and without a call per tree; the same bits.

There are two strategies. "one tree" puts all trees below one root (joined_trees.py), and keeps their nodes a
second time. "tree arrays" predicts tree after tree as the library does, and costs no memory: it is for
ensembles that are too large for the other, and for gradient boosting, for which the library has a loop of its
own that is fast for many rows. Both round rows to float32 where the library does, take the values of the
leaves as they are, and add them up in the library's order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from serving.acceleration.candidates import Predict, UnsuitableCandidate
from serving.acceleration.sklearn.joined_trees import NodeFields, WindowBuffers, WindowLayout, join_trees

_MOST_BYTES = 32 << 20  # of nodes that are kept a second time, with what is in them
_TREE: Final = NodeFields(
    "left_child", "right_child", "feature", "threshold", lambda nodes: nodes["left_child"] >= 0
)
_HISTOGRAM: Final = NodeFields(
    "left", "right", "feature_idx", "num_threshold", lambda nodes: nodes["is_leaf"] == 0
)

# From what the trees say, added up, to the answer: (rows, outputs) to predictions.
FinishPrediction = Callable[[NDArray[Any]], NDArray[Any]]


# Makes what predicts with an estimator; may raise UnsuitableCandidate.
MakePredict = Callable[[Any], Predict]


@dataclass(frozen=True, slots=True)
class EnsembleKind:
    """The estimators of a class: how to predict with them, and what their trees are made of.

    `tries_both` says that neither strategy is always the better one.
    """

    one_tree: MakePredict | None
    tree_arrays: MakePredict
    fields: NodeFields
    nodes: Callable[[Any], list[NDArray[Any]]]
    tries_both: bool = False

    def list_strategies(self, estimator: Any) -> tuple[tuple[str, MakePredict], ...]:
        """The strategies that are worth a try, by name."""
        arrays = ("tree arrays", self.tree_arrays)
        if self.one_tree is None or self._count_node_bytes(estimator) > _MOST_BYTES:
            return (arrays,)
        return (("one tree", self.one_tree), *((arrays,) if self.tries_both else ()))

    def _count_node_bytes(self, estimator: Any) -> int:
        """The bytes of its nodes, with the numbers in the leaves where these are kept apart."""
        outputs = np.sum(getattr(estimator, "n_classes_", getattr(estimator, "n_outputs_", 1)))
        return sum(tree.nbytes + 8 * len(tree) * int(outputs) for tree in self.nodes(estimator))


def find_ensemble_kind(estimator: Any) -> EnsembleKind | None:
    """How to predict with it, None for what is no ensemble of trees, or a subclass of one."""
    kind = type(estimator)
    return _KINDS.get(f"{kind.__module__}.{kind.__qualname__}")


# One tree, and forests of them.


def _make_tree_predict(estimator: Any) -> Predict:
    tree, finish = estimator.tree_, _make_tree_finish(estimator)

    def predict(rows: NDArray[Any]) -> NDArray[Any]:
        return finish(tree.predict(rows.astype(np.float32)).reshape(len(rows), -1))

    return predict


def _forest_one_tree(estimator: Any) -> Predict:
    trees = [one.tree_ for one in estimator.estimators_]
    leaves, values = _make_leaf_finder(trees, estimator.n_features_in_)
    finish, count = _make_tree_finish(estimator), len(trees)

    def predict(rows: NDArray[Any]) -> NDArray[Any]:
        sums = _sum_in_order(values.take(leaves(rows), axis=0))
        sums /= count
        return finish(sums)

    return predict


def _forest_tree_arrays(estimator: Any) -> Predict:
    trees = [one.tree_ for one in estimator.estimators_]
    finish, outputs = _make_tree_finish(estimator), _count_outputs(trees[0])

    def predict(rows: NDArray[Any]) -> NDArray[Any]:
        narrow = rows.astype(np.float32)
        sums = np.zeros((len(rows), outputs))
        for tree in trees:
            sums += tree.predict(narrow).reshape(len(rows), outputs)
        sums /= len(trees)
        return finish(sums)

    return predict


def _make_tree_finish(estimator: Any) -> FinishPrediction:
    """From the values of leaves, or their mean, to the answer of a tree or a forest."""
    outputs = estimator.n_outputs_
    if not hasattr(estimator, "classes_"):
        # The library adds to zero: what sums up to -0.0 becomes 0.0. A tree alone adds nothing.
        zero = 0.0 if hasattr(estimator, "estimators_") else -0.0
        return lambda values: (values[:, 0] if outputs == 1 else values) + zero
    if outputs == 1:
        classes = estimator.classes_
        return lambda values: classes.take(values.argmax(axis=1), axis=0)
    all_classes = estimator.classes_
    dtype = all_classes[0].dtype

    def to_labels(values: NDArray[Any]) -> NDArray[Any]:
        shaped = values.reshape(len(values), outputs, -1)
        answer = np.empty((len(values), outputs), dtype)
        for number, own in enumerate(all_classes):
            answer[:, number] = own.take(shaped[:, number, : len(own)].argmax(axis=1), axis=0)
        return answer

    return to_labels


# Gradient boosting, of trees and of histograms.


def _boosting_one_tree(estimator: Any) -> Predict:
    start = _find_initial_prediction(estimator)
    stages = estimator.estimators_
    leaves, values = _make_leaf_finder([one.tree_ for one in stages.ravel()], estimator.n_features_in_)
    scaled = values.ravel() * estimator.learning_rate
    finish = _make_boosting_finish(estimator)

    def predict(rows: NDArray[Any]) -> NDArray[Any]:
        terms = scaled.take(leaves(rows)).reshape(*stages.shape, len(rows))
        return finish(_add_stages(start, terms))

    return predict


def _boosting_tree_arrays(estimator: Any) -> Predict:
    from sklearn.ensemble._gradient_boosting import predict_stages  # noqa: PLC0415  only with such a model

    start = _find_initial_prediction(estimator)
    stages, rate, finish = estimator.estimators_, estimator.learning_rate, _make_boosting_finish(estimator)

    def predict(rows: NDArray[Any]) -> NDArray[Any]:
        raw = np.repeat(start, len(rows), axis=0)
        predict_stages(stages, rows.astype(np.float32, order="C"), rate, raw)
        return finish(raw)

    return predict


def _find_initial_prediction(estimator: Any) -> NDArray[Any]:
    """What boosting starts from, (1, outputs): known where it is the same for all rows."""
    first = estimator.init_
    constant = type(first).__name__ == "DummyRegressor" or (
        type(first).__name__ == "DummyClassifier" and first.strategy in {"prior", "most_frequent", "constant"}
    )
    if not (isinstance(first, str) and first == "zero") and not (
        constant and type(first).__module__ == "sklearn.dummy"
    ):
        raise UnsuitableCandidate(f"it starts from the predictions of a {type(first).__name__}")
    raw: NDArray[Any] = estimator._raw_predict_init(np.zeros((1, estimator.n_features_in_), np.float32))
    return raw


def _make_boosting_finish(estimator: Any) -> FinishPrediction:
    if not hasattr(estimator, "classes_"):
        return lambda raw: raw.ravel()
    classes = estimator.classes_
    if estimator.n_trees_per_iteration_ == 1:
        return lambda raw: classes[(raw.ravel() >= 0).astype(int)]
    return lambda raw: classes[raw.argmax(axis=1)]


def _histogram_one_tree(estimator: Any) -> Predict:
    from sklearn.ensemble._hist_gradient_boosting.predictor import TreePredictor  # noqa: PLC0415  as above

    start, categories = _read_baseline(estimator)
    stages = estimator._predictors
    trees = [tree.nodes for stage in stages for tree in stage]
    layout = WindowLayout(len(trees), estimator.n_features_in_)
    first = stages[0][0]
    merged = TreePredictor(
        join_trees(trees, _HISTOGRAM, layout), first.binned_left_cat_bitsets, first.raw_left_cat_bitsets
    )
    windows = WindowBuffers(layout, np.float64)
    walk = partial(_predict_histogram_tree, merged, *categories)
    finish, shape = _make_histogram_finish(estimator), (len(stages), len(stages[0]))

    def predict(rows: NDArray[Any]) -> NDArray[Any]:
        terms = windows.find_leaves(rows, walk).reshape(*shape, len(rows))
        return finish(_add_stages(start, terms))

    return predict


def _histogram_tree_arrays(estimator: Any) -> Predict:
    start, categories = _read_baseline(estimator)
    stages, finish = estimator._predictors, _make_histogram_finish(estimator)

    def predict(rows: NDArray[Any]) -> NDArray[Any]:
        wide = rows.astype(np.float64, copy=False)
        raw = np.repeat(start.T, len(rows), axis=1)
        for stage in stages:
            for output, tree in enumerate(stage):
                raw[output] += _predict_histogram_tree(tree, *categories, wide)
        return finish(raw.T)

    return predict


def _predict_histogram_tree(
    tree: Any, known: NDArray[Any], features: NDArray[Any], rows: NDArray[Any]
) -> NDArray[Any]:
    found: NDArray[Any] = tree.predict(rows, known, features, 1)
    return found


def _read_baseline(estimator: Any) -> tuple[NDArray[Any], tuple[NDArray[Any], NDArray[Any]]]:
    """What it starts from, (1, outputs), and the two arrays about categories, of which there must be none."""
    if estimator.is_categorical_ is not None:
        raise UnsuitableCandidate("it has categorical features")
    start: NDArray[Any] = np.reshape(estimator._baseline_prediction, (1, -1)) + 0.0
    return start, estimator._bin_mapper.make_known_categories_bitsets()


def _make_histogram_finish(estimator: Any) -> FinishPrediction:
    if not hasattr(estimator, "classes_"):
        inverse = estimator._loss.link.inverse
        return lambda raw: inverse(raw.ravel())
    classes = estimator.classes_
    if estimator.n_trees_per_iteration_ == 1:
        return lambda raw: classes[(raw.ravel() > 0).astype(int)]
    return lambda raw: classes[raw.argmax(axis=1)]


# What they have in common.


def _make_leaf_finder(
    trees: Sequence[Any], width: int
) -> tuple[Callable[[NDArray[Any]], NDArray[Any]], NDArray[np.float64]]:
    """What finds the leaves of rows, as (trees, rows), and the values of all nodes, as (nodes, outputs)."""
    from sklearn.tree._tree import Tree  # noqa: PLC0415  where there is a tree, it is imported

    states = [tree.__getstate__() for tree in trees]
    layout = WindowLayout(len(trees), width)
    nodes = join_trees([state["nodes"] for state in states], _TREE, layout)
    shape = states[0]["values"].shape[1:]
    values = np.concatenate([np.zeros((len(trees) - 1, *shape)), *(state["values"] for state in states)])
    merged = Tree(layout.window_width, np.full(shape[0], shape[1], np.intp), shape[0])
    depth = max(tree.max_depth for tree in trees) + len(trees).bit_length()
    merged.__setstate__(
        {"max_depth": depth, "node_count": len(nodes), "nodes": nodes, "values": np.ascontiguousarray(values)}
    )
    windows = WindowBuffers(layout, np.float32)
    # The array belongs to the tree, and keeps it alive.
    return partial(_find_leaves, windows, merged.apply), merged.value.reshape(len(nodes), -1)


def _find_leaves(
    windows: WindowBuffers, find: Callable[[NDArray[Any]], NDArray[Any]], rows: NDArray[Any]
) -> NDArray[Any]:
    return windows.find_leaves(rows, find)


def _count_outputs(tree: Any) -> int:
    """The numbers in a leaf."""
    return int(tree.n_outputs * tree.max_n_classes)


def _add_stages(start: NDArray[Any], terms: NDArray[Any]) -> NDArray[Any]:
    """`start`, (1, outputs), and on top of it stage after stage of `terms`, (stages, outputs, rows).

    Returns (rows, outputs).
    """
    first = np.broadcast_to(start.T, terms.shape[1:])[None]
    return _sum_in_order(np.concatenate([first, terms])).T


def _sum_in_order(terms: NDArray[Any]) -> NDArray[Any]:
    """The sum over the first axis, added up one after the other. `terms` is in C order.

    numpy does that of itself, except along a lone axis, which it adds up in pairs.
    """
    if terms.size == len(terms):
        total: NDArray[Any] = np.add.accumulate(terms, axis=0)[-1]
        return total
    summed: NDArray[Any] = np.add.reduce(terms, axis=0)
    return summed


def _read_nodes(trees: Iterable[Any]) -> list[NDArray[Any]]:
    return [one.tree_.__getstate__()["nodes"] for one in trees]


_TREES = EnsembleKind(None, _make_tree_predict, _TREE, lambda estimator: _read_nodes([estimator]))
_FORESTS = EnsembleKind(
    _forest_one_tree, _forest_tree_arrays, _TREE, lambda estimator: _read_nodes(estimator.estimators_)
)
_BOOSTING = EnsembleKind(
    _boosting_one_tree,
    _boosting_tree_arrays,
    _TREE,
    lambda estimator: _read_nodes(estimator.estimators_.ravel()),
    tries_both=True,
)
_HISTOGRAMS = EnsembleKind(
    _histogram_one_tree,
    _histogram_tree_arrays,
    _HISTOGRAM,
    lambda estimator: [tree.nodes for stage in estimator._predictors for tree in stage],
)
_KINDS: Final = {
    "sklearn.tree._classes.DecisionTreeClassifier": _TREES,
    "sklearn.tree._classes.DecisionTreeRegressor": _TREES,
    "sklearn.tree._classes.ExtraTreeClassifier": _TREES,
    "sklearn.tree._classes.ExtraTreeRegressor": _TREES,
    "sklearn.ensemble._forest.RandomForestClassifier": _FORESTS,
    "sklearn.ensemble._forest.RandomForestRegressor": _FORESTS,
    "sklearn.ensemble._forest.ExtraTreesClassifier": _FORESTS,
    "sklearn.ensemble._forest.ExtraTreesRegressor": _FORESTS,
    "sklearn.ensemble._gb.GradientBoostingClassifier": _BOOSTING,
    "sklearn.ensemble._gb.GradientBoostingRegressor": _BOOSTING,
    "sklearn.ensemble._hist_gradient_boosting.gradient_boosting.HistGradientBoostingClassifier": _HISTOGRAMS,
    "sklearn.ensemble._hist_gradient_boosting.gradient_boosting.HistGradientBoostingRegressor": _HISTOGRAMS,
}
