"""Models of a million features: what is made up for them stays small, whatever the width."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import xgboost as xgb
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier

from serving.acceleration.candidates import MAX_ACCELERATED_FEATURES, AccelerableRuntime
from serving.acceleration.xgboost import verification_rows
from serving.acceleration.xgboost.candidates import read_trees
from serving.artifacts.prepare import PreparationRequest, prepare_version
from serving.errors import LoadFailed
from serving.node.batch_equivalence import check_batch_equivalence, warm_up_model
from serving.runtimes import LoadSpec, load_model, output_equality
from serving.runtimes.feature_rows import MAX_FEATURES
from serving.runtimes.xgboost_runtime.legacy_conversion import convert_to_ubjson

DATA = Path(__file__).parents[2] / "data" / "xgboost"
WIDTH = 1_000_003
_MOST = 256 << 20


@contextmanager
def bounded(most: int = _MOST) -> Iterator[None]:
    """Fails where the arrays of this block take more at one time."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


def widened(file: Path, width: int) -> bytes:
    """A binary file that says of itself that its rows have so many features; it splits on a few of them."""
    data = file.read_bytes()
    place = data.startswith(b"binf") * 4 + 4
    return data[:place] + width.to_bytes(4, "little") + data[place + 4 :]


@pytest.fixture(scope="module")
def booster() -> xgb.Booster:
    """A model that splits on the last columns of a million."""
    random, columns = np.random.default_rng(0), 5
    values = random.normal(size=(100, columns))
    rows = sparse.csr_matrix(
        (values.ravel(), np.tile(np.arange(WIDTH - columns, WIDTH), 100), np.arange(101) * columns),
        shape=(100, WIDTH),
    )
    matrix = xgb.DMatrix(rows, label=values[:, 0] > values[:, 1], nthread=1)
    options = {"objective": "binary:logistic", "tree_method": "exact", "max_depth": 3, "nthread": 1}
    return xgb.train(options, matrix, 5)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, booster: xgb.Booster) -> Path:
    """A folder with each of the models."""
    folder = tmp_path_factory.mktemp("wide")
    rows = sparse.csr_matrix(([1.0, 1.0], ([0, 1], [3, WIDTH - 1])), shape=(4, WIDTH))
    estimators = {
        "linear": LogisticRegression(solver="liblinear"),
        "tree": DecisionTreeClassifier(random_state=0),
    }
    for name, estimator in estimators.items():
        (folder / name).mkdir()
        joblib.dump(estimator.fit(rows, [0, 1, 0, 0]), folder / name / "model.joblib")
    (folder / "trees").mkdir()
    booster.save_model(folder / "trees" / "model.json")
    return folder


def test_wide_binary_files_are_converted(tmp_path: Path) -> None:
    """They answer as the narrow ones, where all else is missing."""
    narrow = convert_to_ubjson((DATA / "0.90-logistic.bst").read_bytes(), "model.bst")
    (tmp_path / "stored").mkdir()
    (tmp_path / "stored" / "model.bst").write_bytes(widened(DATA / "0.90-logistic.bst", WIDTH))

    with bounded():
        prepare_version(
            PreparationRequest(
                str(tmp_path / "stored"), (), str(tmp_path / "made"), str(tmp_path / "cache"), 1 << 30
            ),
            lambda _: None,
        )

    converted = (tmp_path / "made" / "model" / "model.bst").read_bytes()
    wide = xgb.Booster(model_file=bytearray(converted))
    booster = xgb.Booster(model_file=bytearray(narrow))
    rows = np.random.default_rng(1).normal(size=(50, booster.num_features()))
    longer = sparse.csr_matrix(rows)
    longer.resize(50, WIDTH)
    assert wide.num_features() == WIDTH
    assert wide.predict(xgb.DMatrix(longer)).tobytes() == booster.predict(xgb.DMatrix(rows)).tobytes()


def test_rows_of_other_columns_are_left_out(booster: xgb.Booster) -> None:
    """Compact probes are as many as those of a narrow model, with values where the trees split."""
    with bounded(32 << 20):
        batches = list(verification_rows.make_sparse_rows(read_trees(booster), WIDTH))

    used = {
        feature
        for tree in read_trees(booster)
        for node in tree.threshold_nodes()
        for feature in [tree.features[node]]
    }
    assert {int(one) for batch in batches for one in batch.indices} == used
    assert sum(batch.shape[0] for batch in batches) > 800
    answers = booster.predict(xgb.DMatrix(batches[0]))
    assert len(set(answers.tolist())) > 10


def test_many_columns_that_are_split_on_take_several_small_sets(
    booster: xgb.Booster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that no row of them is missed for the sake of memory."""
    ordinary = list(verification_rows.make_sparse_rows(read_trees(booster), WIDTH))
    numbers = 256 * len(set(ordinary[0].indices.tolist()))
    monkeypatch.setattr(verification_rows, "_NUMBERS", numbers)

    batches = list(verification_rows.make_sparse_rows(read_trees(booster), WIDTH))

    assert len(batches) == 4 * len(ordinary)
    assert max(batch.nnz for batch in batches) <= numbers
    assert (batches[1] != batches[5]).nnz


@pytest.mark.parametrize("name", ["linear", "tree", "trees"])
def test_wide_models_are_served(name: str, models: Path) -> None:
    """Described, warmed, judged and asked; no faster way is looked for."""
    with bounded():
        runtime = load_model(LoadSpec(models / name))
        schema = runtime.infer_schema()
        warm_up_model(runtime, (1, 64))
        verdict = output_equality.run_generator(check_batch_equivalence(runtime))
        answer: Any = runtime.predict(np.zeros((2, WIDTH)))

    assert schema.example == [0.0] * WIDTH
    assert schema.answer is not None
    assert verdict.merge and verdict.max_rows == 2
    assert len(answer) == 2
    assert isinstance(runtime, AccelerableRuntime)
    assert not runtime.list_candidates()


def test_faster_ways_are_looked_for_up_to_a_width(tmp_path: Path) -> None:
    """And what is made up to prove them stays small there too."""
    matrix = xgb.DMatrix(np.eye(4, MAX_ACCELERATED_FEATURES), label=[0, 1, 0, 1], nthread=1)
    xgb.train({"nthread": 1}, matrix, 2).save_model(tmp_path / "model.json")
    runtime = load_model(LoadSpec(tmp_path))
    assert isinstance(runtime, AccelerableRuntime)

    with bounded():
        probes = runtime.make_verification_rows()

    assert runtime.list_candidates()
    assert sum(len(batch) for batch in probes) > 100


def test_what_is_too_wide_is_refused(tmp_path: Path) -> None:
    """With the width, in both formats."""
    width = MAX_FEATURES + 1
    with pytest.raises(
        LoadFailed, match=f"its rows have {width} features, and there can be up to {MAX_FEATURES}"
    ):
        convert_to_ubjson(widened(DATA / "1.7.6-logistic.bst", width), "model.bst")

    document = convert_to_ubjson((DATA / "1.7.6-logistic.bst").read_bytes(), "model.bst")
    raw = bytes(xgb.Booster(model_file=bytearray(document)).save_raw("json"))
    features = b'"num_feature":"4"'
    assert features in raw
    (tmp_path / "model.json").write_bytes(raw.replace(features, b'"num_feature":"%d"' % width))
    with pytest.raises(LoadFailed, match=f"have {width} features; there can be up to {MAX_FEATURES}"):
        load_model(LoadSpec(tmp_path))
