from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightgbm as lgb
import numpy as np
import pandas as pd
import pytest

from serving.errors import InvalidInputs, LoadFailed
from serving.node.batch_equivalence import check_batch_equivalence
from serving.runtimes import LoadSpec, Runtime, load_model
from serving.runtimes.json_codec import InstancesDecoder
from serving.runtimes.output_equality import run_generator

RNG = np.random.default_rng(5)
X = np.where(RNG.random((300, 4)) < 0.1, np.nan, RNG.normal(size=(300, 4)))
SCORE = np.nan_to_num(X) @ [1.0, -2.0, 0.5, 0.0]
LABELS = (SCORE > 0).astype(int)
CLASSES = np.digitize(SCORE, [-1, 1])
COLORS = ["blue", "green", "red"]
FRAME = pd.DataFrame(
    {"size": X[:, 0], "color": pd.Categorical(RNG.choice(COLORS, len(X)), categories=COLORS)}
)


def train(objective: str = "binary", labels: Any = LABELS, **parameters: Any) -> lgb.Booster:
    group = [10] * 30 if objective == "lambdarank" else None
    return train_on(lgb.Dataset(X, labels, group=group), objective=objective, **parameters)


def train_on(dataset: lgb.Dataset, **parameters: Any) -> lgb.Booster:
    return lgb.train({"verbosity": -1, "num_threads": 1, "seed": 1, "max_depth": 3, **parameters}, dataset, 8)


def train_on_frame(frame: pd.DataFrame = FRAME) -> lgb.Booster:
    labels = LABELS ^ (FRAME["color"] == "red").to_numpy()
    return train_on(lgb.Dataset(frame, labels), objective="binary", min_data_per_group=1, cat_smooth=1)


def served(booster: lgb.Booster, folder: Path) -> Runtime:
    booster.save_model(folder / "model.txt")
    return load_model(LoadSpec(folder))


def answers(runtime: Runtime, instances: list[Any], **parameters: Any) -> Any:
    """What a request would get, body included."""
    body = json.dumps({"instances": instances, **parameters}).encode()
    batch, others = InstancesDecoder().decode(body, runtime.input_format)
    return runtime.predict(batch, **others)


def to_rows(array: Any) -> list[Any]:
    return [[None if value != value else value for value in row] for row in array.tolist()]


def assert_same_bits(one: Any, other: Any) -> None:
    assert (one.dtype, one.shape) == (other.dtype, other.shape)
    assert one.tobytes() == other.tobytes()


BOOSTERS: dict[str, Callable[[], lgb.Booster]] = {
    "binary": train,
    "regression": lambda: train("regression", SCORE),
    "multiclass": lambda: train("multiclass", CLASSES, num_class=3),
    "one against all": lambda: train("multiclassova", CLASSES, num_class=3),
    "ranking": lambda: train("lambdarank", CLASSES),
    "dart": lambda: train(boosting="dart"),
    "forest": lambda: train(boosting="rf", bagging_freq=1, bagging_fraction=0.7),
    "linear trees": lambda: train("regression", SCORE, linear_tree=True),
}


@pytest.mark.parametrize("kind", BOOSTERS)
def test_the_answers_are_the_librarys_alone_and_in_batches(kind: str, tmp_path: Path) -> None:
    booster = BOOSTERS[kind]()
    runtime = served(booster, tmp_path)
    own = lgb.Booster(model_file=tmp_path / "model.txt").predict(X[:40], num_threads=1)

    assert_same_bits(answers(runtime, to_rows(X[:40])), own)
    assert_same_bits(np.concatenate([answers(runtime, [row]) for row in to_rows(X[:40])]), own)
    assert run_generator(check_batch_equivalence(runtime)).merge


def test_early_stopping_answers_with_the_best_iteration(tmp_path: Path) -> None:
    dataset = lgb.Dataset(X[:200], LABELS[:200])
    parameters = {"objective": "binary", "verbosity": -1, "num_threads": 1, "learning_rate": 1.0}
    booster = lgb.train(
        parameters,
        dataset,
        50,
        [lgb.Dataset(X[200:], LABELS[200:], reference=dataset)],
        callbacks=[lgb.early_stopping(2, verbose=False)],
    )
    assert 0 < booster.best_iteration < 50

    runtime = served(booster, tmp_path)

    assert_same_bits(answers(runtime, to_rows(X[:5])), booster.predict(X[:5], num_threads=1))


def test_texts_of_categories_are_answered_as_a_data_frame_is(tmp_path: Path) -> None:
    booster = train_on_frame()
    runtime = served(booster, tmp_path)
    rows = [
        [None if size != size else size, color]
        for size, color in zip(FRAME["size"], FRAME["color"], strict=True)
    ]
    own = booster.predict(FRAME[:20], num_threads=1)

    assert_same_bits(answers(runtime, rows[:20]), own)
    assert_same_bits(answers(runtime, [{"color": color, "size": size} for size, color in rows[:20]]), own)
    assert_same_bits(answers(runtime, [[size, COLORS.index(color)] for size, color in rows[:20]]), own)
    assert answers(runtime, [[0.5, "ultraviolet"]]) == answers(runtime, [[0.5, None]])
    assert len(set(own)) > 4


def test_what_the_schema_tells(tmp_path: Path) -> None:
    runtime = served(train_on_frame(), tmp_path)
    schema = runtime.infer_schema()
    signature = schema.signatures["serving_default"]

    assert schema.platform == "lightgbm"
    assert [(one.name, one.datatype, one.classes) for one in signature.inputs] == [
        ("size", "FP64", ()),
        ("color", "BYTES", tuple(COLORS)),
    ]
    assert [(one.name, one.datatype, one.shape) for one in signature.outputs] == [
        ("predictions", "FP64", (-1,))
    ]
    assert answers(runtime, [schema.example]) == schema.answer


def test_the_schema_of_several_classes(tmp_path: Path) -> None:
    schema = served(BOOSTERS["multiclass"](), tmp_path).infer_schema()
    (output,) = schema.signatures["serving_default"].outputs

    assert (output.shape, output.classes) == ((-1, 3), (0, 1, 2))
    assert [one.shape for one in schema.signatures["serving_default"].inputs] == [(-1, 4)]


def test_categories_that_are_numbers_are_sent_as_codes(tmp_path: Path) -> None:
    frame = FRAME.assign(color=FRAME["color"].cat.rename_categories([10, 20, 30]))
    booster = train_on_frame(frame)
    runtime = served(booster, tmp_path)

    (warning,) = runtime.warnings
    assert "'color'" in warning
    assert_same_bits(answers(runtime, [[0.5, 2]]), booster.predict(np.array([[0.5, 2]])))


def test_ordered_categories_leave_open_which_column_has_which(tmp_path: Path) -> None:
    grades = pd.Categorical(RNG.choice(["low", "high"], len(X)), categories=["low", "high"], ordered=True)
    runtime = served(train_on_frame(FRAME.assign(grade=grades)), tmp_path)

    (warning,) = runtime.warnings
    assert "does not tell which are of which column" in warning
    with pytest.raises(InvalidInputs, match="value 1 is a string; expected a number"):
        answers(runtime, [[0.5, "red", "low"]])


@pytest.mark.parametrize(
    "arguments",
    [
        {"raw_score": True},
        {"pred_leaf": True},
        {"pred_contrib": True},
        {"num_iteration": 3},
        {"start_iteration": 2, "num_iteration": 2},
        {"pred_early_stop": True, "pred_early_stop_freq": 2, "pred_early_stop_margin": 0.5},
    ],
)
def test_arguments_of_predict(arguments: dict[str, Any], tmp_path: Path) -> None:
    booster = BOOSTERS["multiclass"]()
    runtime = served(booster, tmp_path)

    own = booster.predict(X[:5], num_threads=1, **arguments)

    assert_same_bits(answers(runtime, to_rows(X[:5]), **arguments, validate_features=True), own)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"num_threads": 64}, "'num_threads'"),
        ({"predict_disable_shape_check": True}, "'predict_disable_shape_check'"),
        ({"raw_score": 1}, '"raw_score" must be true or false'),
        ({"num_iteration": 1 << 40}, '"num_iteration" must be an integer'),
        ({"num_iteration": "3"}, '"num_iteration" must be an integer'),
    ],
)
def test_arguments_that_are_refused(arguments: dict[str, Any], problem: str, tmp_path: Path) -> None:
    runtime = served(train(), tmp_path)

    with pytest.raises(InvalidInputs, match=problem):
        answers(runtime, to_rows(X[:1]), **arguments)


@pytest.mark.parametrize(
    ("instances", "problem"),
    [
        ([[1.0, 2.0, 3.0]], "3 values; the model expects 4"),
        ([[1.0, 2.0, 3.0, "red"]], "expected a number"),
        ([1.0], "expected a list of 4 numbers"),
        ([{"a": 1.0}], "is an object; expected a list of 4 numbers"),
    ],
)
def test_instances_that_do_not_fit(instances: list[Any], problem: str, tmp_path: Path) -> None:
    runtime = served(train(), tmp_path)

    with pytest.raises(InvalidInputs, match=problem):
        answers(runtime, instances)


@pytest.mark.parametrize(("value", "kind"), [([1.0], "a list"), ({"0": 1.0}, "an object")])
def test_a_named_feature_takes_one_value(value: Any, kind: str, tmp_path: Path) -> None:
    """KServe's own sample of LightGBM sends a list for each."""
    dataset = lgb.Dataset(X, LABELS, feature_name=["Aa", "b", "c", "d"])
    runtime = served(train_on(dataset), tmp_path)

    for row in ({"Aa": value, "b": 1, "c": 2, "d": 3}, {"Aa": value, "b": value, "c": value, "d": value}):
        with pytest.raises(InvalidInputs, match=f"Instance 0 has {kind} for 'Aa'; a feature takes one value"):
            answers(runtime, [row])


def test_columns_by_name(tmp_path: Path) -> None:
    names = ["a", "b", "c", "d"]
    booster = train_on(lgb.Dataset(X, LABELS, feature_name=names), objective="binary")
    runtime = served(booster, tmp_path)
    instances = [dict(zip(reversed(names), reversed(row), strict=True)) for row in to_rows(X[:5])]

    assert_same_bits(answers(runtime, instances), booster.predict(X[:5], num_threads=1))
    with pytest.raises(InvalidInputs, match="unknown 'e'"):
        answers(runtime, [{**instances[0], "e": 1.0}])


def test_a_text_that_lightgbm_refuses(tmp_path: Path) -> None:
    train().save_model(tmp_path / "model.txt")
    text = (tmp_path / "model.txt").read_text()
    (tmp_path / "model.txt").write_text(text.replace("label_index=0\n", "", 1))

    with pytest.raises(LoadFailed, match=r"model\.txt is not a model that LightGBM"):
        load_model(LoadSpec(tmp_path))


def test_an_unpickled_estimator_stays_a_model_of_scikit_learn(tmp_path: Path) -> None:
    import joblib

    estimator = lgb.LGBMClassifier(n_estimators=3, n_jobs=1, verbosity=-1).fit(np.nan_to_num(X), CLASSES)
    joblib.dump(estimator, tmp_path / "model.joblib")
    runtime = load_model(LoadSpec(tmp_path))

    assert runtime.framework.name == "SCIKIT_LEARN"
    assert [math.floor(label) for label in answers(runtime, [[0.0, 0.0, 0.0, 0.0]])] == list(
        estimator.predict(np.zeros((1, 4)))
    )
