"""Texts that LightGBM would follow in a circle or beyond its memory."""

from __future__ import annotations

import pytest

from serving.runtimes.lightgbm_runtime.tree_structure import check_tree

TREE = {
    "num_leaves": "4",
    "num_cat": "1",
    "split_feature": "0 1 1",
    "threshold": "0.5 0 1e300",
    "decision_type": "2 1 2",
    "left_child": "1 -1 -3",
    "right_child": "2 -2 -4",
    "cat_boundaries": "0 2",
    "cat_threshold": "5 1",
}


def check(**changes: str) -> None:
    check_tree("\n".join(f"{name}={value}" for name, value in {**TREE, **changes}.items()), 2)


def test_trees() -> None:
    check()
    check(left_child="2 -1 1", right_child="-2 -3 -4")
    check_tree("num_leaves=1\nnum_cat=0\nleaf_value=0.5\n", 2)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"left_child": "0 -1 -3"}, "no tree"),
        ({"left_child": "1 2 -3"}, "no tree"),
        ({"left_child": "1 -1000000 -3"}, "child that is not there"),
        ({"left_child": "1 -1"}, "child that is not there"),
        ({"num_leaves": "2000000000"}, "child that is not there"),
        ({"num_leaves": "0"}, "0 leaves"),
        ({"left_child": "1 -1 -99999999999999999999"}, "too large"),
        ({"split_feature": "0 1 2"}, "feature that is not there"),
        ({"split_feature": "0 -1 1"}, "feature that is not there"),
        ({"threshold": "0.5 1 2"}, "set of categories that is not there"),
        ({"threshold": "0.5 nan 2"}, "NaN"),
        ({"decision_type": "2 1"}, "no threshold"),
        ({"num_cat": "0"}, "set of categories is not there"),
        ({"num_cat": "2000000000"}, "set of categories is not there"),
        ({"cat_boundaries": "0 200"}, "set of categories is not there"),
        ({"leaf_features": "0 7"}, "a leaf asks"),
        ({"leaf_value": "1\nnum_leaves=4"}, "there twice"),
    ],
)
def test_texts_that_are_no_trees(changes: dict[str, str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        check(**changes)
