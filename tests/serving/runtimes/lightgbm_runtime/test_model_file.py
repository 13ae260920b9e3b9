from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lightgbm as lgb
import numpy as np
import pytest

from serving.errors import LoadFailed
from serving.runtimes.lightgbm_runtime.model_file import ModelHeader, read_checked_header


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model whose second feature has categories."""
    file = tmp_path_factory.mktemp("model") / "model.txt"
    rows = np.random.default_rng(0).normal(size=(100, 2))
    rows[:, 1] = np.arange(100) % 3
    dataset = lgb.Dataset(rows, rows[:, 1] == 1, feature_name=["size", "kind"], categorical_feature=["kind"])
    parameters = {"objective": "binary", "verbosity": -1, "num_threads": 1, "min_data_per_group": 1}
    lgb.train(parameters, dataset, 3).save_model(file)
    return file.read_text()


def test_the_lines_before_the_trees(text: str, tmp_path: Path) -> None:
    (tmp_path / "model.txt").write_text(text)

    assert read_checked_header(tmp_path / "model.txt") == ModelHeader(
        width=2, feature_names=("size", "kind"), objective="binary", class_count=1, categorical=(1,)
    )


def test_names_that_lightgbm_has_made_up_are_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "model.txt").write_text(
        text.replace("feature_names=size kind", "feature_names=Column_0 Column_1", 1)
    )

    assert read_checked_header(tmp_path / "model.txt").feature_names == ()


def test_the_text_of_an_early_version(text: str, tmp_path: Path) -> None:
    """2.0 and 2.1 have written neither an end of the trees nor parameters."""
    trees, _, _ = text.partition("end of trees")
    early = (
        trees.replace("version=v4", "version=v2")
        + "\nfeature importances:\nkind=3\n\npandas_categorical:null\n"
    )
    file = tmp_path / "model.txt"
    file.write_text(early)

    assert read_checked_header(file).width == 2
    rows = np.array([[0.5, 0.0], [0.5, 1.0]])
    expected = lgb.Booster(model_str=text).predict(rows, num_threads=1)
    assert np.array_equal(lgb.Booster(model_file=file).predict(rows, num_threads=1), expected)


def test_more_than_one_empty_line_before_the_trees(text: str, tmp_path: Path) -> None:
    """A text in treelite's tests has two; LightGBM reads any number."""
    file = tmp_path / "model.txt"
    file.write_text(text.replace("\nTree=0\n", "\n\nTree=0\n", 1))

    assert read_checked_header(file).width == 2
    assert lgb.Booster(model_file=file).num_trees() == 3


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda text: "", "not a model that LightGBM has written"),
        (lambda text: "Notes on the model.\n", "not a model that LightGBM has written"),
        (lambda text: text.replace("\n", "\r\n"), "its head has no end"),
        (lambda text: text[:200], "its head has no end"),
        (lambda text: text[: text.index("Tree=2")], "tree 2 of 3 is not in its place"),
        (lambda text: text.replace("leaf_value=", "leaf_value=1", 1), "tree 1 of 3 is not in its place"),
        (lambda text: text[: text.index("end of trees")], "the end of its trees is missing"),
        (lambda text: text[: text.index("end of parameters")], "the end of its parameters is missing"),
        (lambda text: text.replace("max_feature_idx=1", "max_feature_idx=1999999999"), "2000000000 features"),
        (lambda text: text.replace("max_feature_idx=1", "max_feature_idx=2"), "names for 2 of 3 features"),
        (lambda text: text.replace("num_class=1\n", ""), "num_class is missing"),
        (lambda text: text.replace("iteration=1\n", "iteration=1000\n"), "3 trees, 1000 of each round"),
        (lambda text: text.replace("iteration=1\n", "iteration=0\n"), "3 trees, 0 of each round"),
    ],
)
def test_texts_that_are_not_whole(
    change: Callable[[str], str], problem: str, text: str, tmp_path: Path
) -> None:
    (tmp_path / "model.txt").write_bytes(change(text).encode())

    with pytest.raises(LoadFailed, match=problem):
        read_checked_header(tmp_path / "model.txt")
