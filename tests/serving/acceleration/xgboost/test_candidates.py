from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xgboost as xgb
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving.acceleration.candidates import Candidate
from serving.acceleration.verification import CandidateResult, verify_candidates
from serving.acceleration.xgboost import inplace_predict, treelite_gtil
from serving.acceleration.xgboost.candidates import BoosterPredictSpec, convert_to_treelite, read_trees
from serving.acceleration.xgboost.verification_rows import make_verification_rows
from serving.errors import InvalidInputs
from serving.runtimes.xgboost_runtime.runtime import BoosterRuntime, XgbModelRuntime

RNG = np.random.default_rng(5)
X = np.where(RNG.random((200, 4)) < 0.1, np.nan, RNG.normal(size=(200, 4)))
SCORE = np.nan_to_num(X) @ [1.0, -2.0, 0.5, 0.0]
LABELS = (SCORE > 0).astype(int)
CLASSES = np.digitize(SCORE, [-1, 1])


def train(
    objective: str = "reg:squarederror", labels: Any = SCORE, rounds: int = 8, **parameters: Any
) -> xgb.Booster:
    matrix = xgb.DMatrix(X, label=labels)
    return xgb.train({"objective": objective, "max_depth": 3, "nthread": 1, **parameters}, matrix, rounds)


def booster(model: Any) -> BoosterRuntime:
    return BoosterRuntime(model, (), threads=1)


def estimator(model: Any) -> XgbModelRuntime:
    return XgbModelRuntime(model, (), threads=1)


def same(one: Any, other: Any) -> bool:
    kind = (one.dtype, one.shape) == (other.dtype, other.shape)
    return kind and bool(np.asarray(one).tobytes() == np.asarray(other).tobytes())


def proofs(runtime: BoosterRuntime) -> dict[str, CandidateResult]:
    return {proof.candidate.name: proof for proof in verify_candidates(runtime, budget=0).proofs}


def refused(runtime: BoosterRuntime) -> dict[str, str]:
    return {name: proof.refused for name, proof in proofs(runtime).items()}


OBJECTIVES: dict[str, Callable[..., xgb.Booster]] = {
    "squared error": train,
    "logistic": lambda **of: train("binary:logistic", LABELS, **of),
    "raw scores": lambda **of: train("binary:logitraw", LABELS, **of),
    "hinge": lambda **of: train("binary:hinge", LABELS, **of),
    "probabilities": lambda **of: train("multi:softprob", CLASSES, num_class=3, **of),
    "counts": lambda **of: train("count:poisson", CLASSES, **of),
    "gamma": lambda **of: train("reg:gamma", CLASSES + 1, **of),
    # It grows no forests.
    "absolute error": lambda **of: train("reg:absoluteerror", SCORE, **of | {"num_parallel_tree": 1}),
    "two targets": lambda **of: train(labels=np.c_[SCORE, -SCORE], **of),
    "dart": lambda **of: train("binary:logistic", LABELS, booster="dart", rate_drop=0.3, **of),
}


@given(
    make=st.sampled_from(list(OBJECTIVES.values())),
    parameters=st.fixed_dictionaries(
        {"max_depth": st.integers(1, 5), "seed": st.integers(0, 5), "num_parallel_tree": st.integers(1, 2)},
        optional={"base_score": st.sampled_from([0.5, 0.3]), "subsample": st.just(0.5)},
    ),
    rows=st.lists(
        st.lists(
            st.floats(-3, 3, width=32) | st.floats(-1e30, 1e30) | st.just(math.nan), min_size=4, max_size=4
        ),
        min_size=1,
        max_size=9,
    ),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_proven_answers_any_rows_as_xgboost(
    make: Callable[..., xgb.Booster], parameters: dict[str, Any], rows: list[list[float]]
) -> None:
    """Whatever the model, treelite gives XGBoost's bits, and so does the call in place, if it is proven."""
    model = make(rounds=4, **parameters)
    runtime = booster(model)
    array = np.array(rows)
    ways = {offer.name: offer.build() for offer in runtime.list_candidates()}

    assert same(ways["treelite"].predict(array), model.predict(xgb.DMatrix(array)))
    assert same(ways["in place"].predict(array), model.inplace_predict(array))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_boosters_are_accelerated(name: str) -> None:
    """Both ways are proven for every objective, of trees that are simply added."""
    found = refused(booster(OBJECTIVES[name]()))

    assert found["treelite"] == ""
    # In place, XGBoost adds the base score of dart last: other bits than those of its predict.
    assert ("differs in some bit" in found["in place"]) == (name == "dart")


ESTIMATORS: dict[str, Callable[[], Any]] = {
    "two classes": lambda: xgb.XGBClassifier(n_estimators=5).fit(X, LABELS),
    "three classes": lambda: xgb.XGBClassifier(n_estimators=5).fit(X, CLASSES),
    "labels that hold": lambda: xgb.XGBClassifier(n_estimators=5).fit(X, np.c_[LABELS, 1 - LABELS]),
    "stopped early": lambda: xgb.XGBRegressor(
        n_estimators=60, early_stopping_rounds=2, learning_rate=1.0
    ).fit(X, SCORE, eval_set=[(X[::3], SCORE[::3] * -1)], verbose=False),
    "a forest": lambda: xgb.XGBRFRegressor(n_estimators=5).fit(X, SCORE),
    "a ranker": lambda: xgb.XGBRanker(n_estimators=5).fit(X, LABELS, group=[100, 100]),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators_are_accelerated(name: str) -> None:
    """Labels, early stopping and all: what the estimator's own predict says."""
    assert refused(estimator(ESTIMATORS[name]())) == {"in place": "", "treelite": ""}


def test_labels_of_softmax_come_in_place() -> None:
    """treelite knows no softmax that answers with a class; XGBoost's own call does."""
    model = xgb.XGBClassifier(n_estimators=5, objective="multi:softmax").fit(X, CLASSES)

    found = refused(estimator(model))

    assert found["in place"] == ""
    assert "numbers of another kind" in found["treelite"]


def test_a_number_that_stands_for_a_missing_value() -> None:
    """XGBoost takes it in place; treelite only knows NaN."""
    found = refused(estimator(xgb.XGBRegressor(n_estimators=5, missing=-1.0).fit(X, SCORE)))

    assert found == {"in place": "", "treelite": "-1.0 stands for a missing value"}


def test_splits_by_category_are_not_converted() -> None:
    frame = pd.DataFrame({"a": pd.Categorical(RNG.integers(0, 20, 200).astype(str)), "b": SCORE})
    matrix = xgb.DMatrix(frame, label=RNG.normal(size=200), enable_categorical=True)
    model = xgb.train({"max_cat_to_onehot": 1, "nthread": 1}, matrix, 3)

    assert refused(booster(model)) == {"in place": "", "treelite": "trees that split by category"}


def test_unknown_kinds_get_no_offer() -> None:
    """Linear boosters, and objects whose class may predict in a way of its own."""

    class Doubled(xgb.XGBRegressor):  # type: ignore[misc,unused-ignore]
        def predict(self, X: Any, **parameters: Any) -> Any:  # noqa: N803
            return super().predict(X, **parameters) * 2

    linear = xgb.train({"booster": "gblinear", "nthread": 1}, xgb.DMatrix(np.nan_to_num(X), label=SCORE), 3)
    doubled = Doubled(n_estimators=2).fit(X, SCORE)

    assert booster(linear).list_candidates() == ()
    assert estimator(doubled).list_candidates() == ()


def changed(model: xgb.Booster, change: Callable[[dict[str, Any], int], None], node: int = -1) -> xgb.Booster:
    """A model like this with one node of its last tree changed: by default the inner node furthest down."""
    document = json.loads(model.save_raw("json"))
    tree = document["learner"]["gradient_booster"]["model"]["trees"][-1]
    change(tree, [place for place, left in enumerate(tree["left_children"]) if left != -1][node])
    return xgb.Booster(model_file=bytearray(json.dumps(document).encode()))


def move(step: float) -> Callable[[dict[str, Any], int], None]:
    def change(tree: dict[str, Any], node: int) -> None:
        threshold = np.float32(tree["split_conditions"][node])
        tree["split_conditions"][node] = float(np.nextafter(threshold, np.float32(step)))

    return change


def swap_default(tree: dict[str, Any], node: int) -> None:
    tree["default_left"][node] = 1 - tree["default_left"][node]


@pytest.mark.parametrize("change", [move(math.inf), move(-math.inf), swap_default])
@pytest.mark.parametrize("node", [0, -1])
def test_a_model_a_hair_off_is_refused(change: Any, node: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One threshold on the next float32, or missing values sent to the other side, shows on the probes."""
    model = train(max_depth=5, rounds=20)
    runtime = booster(model)
    wrong = convert_to_treelite(BoosterPredictSpec(changed(model, change, node), 4))
    monkeypatch.setattr("serving.acceleration.xgboost.candidates.convert_to_treelite", lambda asked: wrong)

    found = refused(runtime)

    assert found["in place"] == ""
    assert found["treelite"]


def test_probes_reach_the_nodes_of_a_large_model() -> None:
    """On 256 nodes of 2,000, both sides of the threshold; never an infinite number; always the same rows."""
    grown = read_trees(train(max_depth=6, rounds=60))

    once, again = make_verification_rows(grown, 4), make_verification_rows(grown, 4)

    assert sum(map(len, once)) == 4 * 256 + 384 + 256 + 128
    assert all(same(one, other) for one, other in zip(once, again, strict=True))
    assert not any(np.isinf(batch.astype(np.float32)).any() for batch in once)


def test_a_model_of_one_leaf_has_probes() -> None:
    stump = train(max_depth=1, rounds=1, min_child_weight=1e9)

    assert [len(batch) for batch in make_verification_rows(read_trees(stump), 4)] == [384, 256, 128]
    assert refused(booster(stump)) == {"in place": "", "treelite": ""}


def test_a_converted_model_is_kept_in_a_file(tmp_path: Path) -> None:
    """What is read back answers as what was written."""
    runtime = estimator(ESTIMATORS["three classes"]())
    offer = offers(runtime)["treelite"]
    assert offer.save is not None
    assert offer.restore is not None

    candidate = offer.build()
    offer.save(candidate, tmp_path / "treelite")

    assert same(offer.restore(tmp_path / "treelite").predict(X), runtime.predict_reference(X))


def offers(runtime: BoosterRuntime) -> dict[str, Candidate]:
    return {offer.name: offer for offer in runtime.list_candidates()}


def test_only_ordinary_rows_go_the_faster_way() -> None:
    """Parameters, other types, other widths and infinities get the library's own words."""
    runtime = booster(train())
    asked: list[Any] = []

    def faster(rows: Any) -> Any:
        asked.append(rows)
        return np.zeros(len(rows), np.float32)

    runtime.set_fast_path(faster)
    ordinary = [X, X[:1], np.array([[1, 2, 3, 2**60]]), np.array([[1e38, -1e38, 3e38, 0]])]
    for rows in ordinary:
        runtime.predict(rows)
    for rows in (X.tolist(), X.astype(np.float32), X[::2], np.array([[1e30, np.nan, 0, 3e38]])[:, ::-1]):
        runtime.predict(rows)
    runtime.predict(X, output_margin=True)
    for rows in (np.array([[np.inf, 0, 0, 0]]), np.array([[1e39, np.nan, 0, 0]]), np.zeros((1, 3))):
        with pytest.raises(InvalidInputs):
            runtime.predict(rows)

    assert len(asked) == len(ordinary)
    assert all(one is other for one, other in zip(asked, ordinary, strict=True))

    runtime.set_fast_path(None)
    runtime.predict(X)
    assert len(asked) == len(ordinary)


@pytest.mark.parametrize("name", ["in place", "treelite"])
def test_an_answer_stays_what_it_was(name: str) -> None:
    """The next call writes to memory of its own."""
    candidate = offers(booster(train()))[name].build()

    first = candidate.predict(X[:2])
    kept = np.array(first)
    candidate.predict(X[50:52])

    assert same(np.asarray(first), kept)


@pytest.mark.parametrize("module", [treelite_gtil, inplace_predict])
@pytest.mark.parametrize("answer", ["none", "wrong"])
def test_where_the_prepared_call_does_not_serve_the_public_one_does(
    module: Any, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that has no such function, or one that answers otherwise."""

    class Missing:
        def __init__(self, *_: Any) -> None:
            raise AttributeError("no such function")

    class Wrong:
        def __init__(self, *_: Any) -> None: ...

        def __call__(self, rows: Any) -> Any:
            return np.full(len(rows), 0.125, np.float32)

        def agrees_with(self, _: Any) -> bool:
            return False

    monkeypatch.setattr(module, "_Prepared", {"none": Missing, "wrong": Wrong}[answer])
    runtime = booster(train())
    way = offers(runtime)["treelite" if module is treelite_gtil else "in place"].build()

    assert same(way.predict(X), runtime.predict_reference(X))
