from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import xgboost as xgb
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LinearRegression

from serving.errors import InvalidInputs, LoadFailed, ModelFailed
from serving.runtimes import ArrayFormat, LoadSpec, Runtime, load_model
from serving.runtimes.instance_batch import count_rows
from serving.runtimes.json_codec import InstancesDecoder

DATA = Path(__file__).parents[3] / "data" / "xgboost"
RNG = np.random.default_rng(5)
X = np.where(RNG.random((150, 4)) < 0.1, np.nan, RNG.normal(size=(150, 4)))
X_INT = RNG.integers(-3, 3, size=(150, 4))
SCORE = np.nan_to_num(X) @ [1.0, -2.0, 0.5, 0.0]
LABELS = (SCORE > 0).astype(int)
CLASSES = np.digitize(SCORE, [-1, 1])
NAMES = ["a", "b", "c", "d"]


def train(
    objective: str = "binary:logistic", labels: Any = LABELS, *, names: Any = None, **parameters: Any
) -> xgb.Booster:
    matrix = xgb.DMatrix(X, label=labels, feature_names=names)
    return xgb.train({"objective": objective, "max_depth": 3, "nthread": 1, **parameters}, matrix, 8)


def served(model: Any, folder: Path, name: str = "model.bst", **options: Any) -> Runtime:
    if name in {"model.pkl", "model.joblib"}:
        joblib.dump(model, folder / name)
    elif name == "model.bst":  # saving under this name warns today
        (folder / name).write_bytes(model.save_raw())
    else:
        model.save_model(folder / name)
    return load_model(LoadSpec(folder, **options))


def answers(runtime: Runtime, instances: list[Any], **parameters: Any) -> Any:
    """What a request would get, body included."""
    body = json.dumps({"instances": instances, **parameters}).encode()
    batch, others = InstancesDecoder().decode(body, runtime.input_format)
    return runtime.predict(batch, **others)


def rows(array: Any) -> list[Any]:
    return [[None if value != value else value for value in row] for row in array.tolist()]


def assert_same_bits(one: Any, other: Any) -> None:
    assert (one.dtype, one.shape) == (other.dtype, other.shape)
    assert one.tobytes() == other.tobytes()


BOOSTERS: dict[str, tuple[Callable[[], xgb.Booster], bool]] = {
    "logistic": (train, True),
    "squared error": (lambda: train("reg:squarederror", SCORE), True),
    "softprob": (lambda: train("multi:softprob", CLASSES, num_class=3), True),
    "softmax": (lambda: train("multi:softmax", CLASSES, num_class=3), True),
    "dart": (lambda: train(booster="dart", rate_drop=0.3), True),
    "linear": (
        lambda: xgb.train({"booster": "gblinear", "nthread": 1}, xgb.DMatrix(X, label=SCORE), 8),
        False,
    ),
    "two targets": (lambda: train("reg:squarederror", np.c_[SCORE, -SCORE]), True),
    "with names": (lambda: train(names=NAMES), True),
}


@pytest.mark.parametrize("file", ["model.bst", "model.json", "model.ubj", "model.pkl", "model.joblib"])
@pytest.mark.parametrize("name", BOOSTERS)
def test_boosters_answer_to_the_bit(name: str, file: str, tmp_path: Path) -> None:
    """Whatever the file, the answer is booster.predict(DMatrix(np.array(instances))), bit for bit."""
    make, exact = BOOSTERS[name]
    booster = make()
    runtime = served(booster, tmp_path, file)

    assert (runtime.framework.name, runtime.mergeable, runtime.exact) == ("XGBOOST", True, exact)
    assert runtime.input_format({}) == ArrayFormat(4, nullable=True, allows_objects=name == "with names")
    for array in (X[:1], X, X_INT):
        expected = booster.predict(xgb.DMatrix(array), validate_features=False)
        assert_same_bits(answers(runtime, rows(array)), expected)
        assert_same_bits(runtime.predict(array), expected)
    assert count_rows(runtime.predict(runtime.make_synthetic_rows(7))) == 7


@pytest.mark.parametrize("name", [name for name, (_, exact) in BOOSTERS.items() if exact])
def test_exact_boosters_answer_alike_in_any_company(name: str, tmp_path: Path) -> None:
    """Rows one by one give the bits they give together."""
    runtime = served(BOOSTERS[name][0](), tmp_path)

    together = np.asarray(runtime.predict(X))
    alone = np.concatenate([np.asarray(runtime.predict(row[None])) for row in X])

    assert_same_bits(together, alone)


@pytest.mark.parametrize("file", sorted(DATA.glob("*.bst")), ids=lambda file: file.stem)
def test_binary_models_of_old_versions_are_served(file: Path, tmp_path: Path) -> None:
    """model.bst gives what the version that wrote it gave, bit for bit; 0.90 added the base score last."""
    shutil.copy(file, tmp_path / "model.bst")
    expected = json.loads(file.with_suffix(".json").read_text())
    runtime = load_model(LoadSpec(tmp_path))

    for kind in ("predict", "output_margin", "pred_leaf"):
        result = answers(runtime, expected["instances"], **({} if kind == "predict" else {kind: True}))
        if file.name.startswith("0.90"):
            assert np.allclose(result, expected[kind], rtol=1e-5, atol=1e-6)
        else:
            assert result.tolist() == expected[kind]


def test_a_pickle_of_an_old_version_loads_with_a_warning(tmp_path: Path) -> None:
    """XGBoost's own advice about old pickles, which it gives once in a process, becomes the version's."""
    shutil.copy(DATA / "1.7.6-booster.pkl", tmp_path / "model.pkl")
    program = (
        "import sys; from pathlib import Path; from serving.runtimes import LoadSpec, load_model\n"
        "print(load_model(LoadSpec(Path(sys.argv[1]))).warnings)"
    )

    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True
    )

    assert "Booster.save_model" in done.stdout
    assert count_rows(load_model(LoadSpec(tmp_path)).predict([[1.0, 2.0, 3.0]])) == 1


@pytest.mark.parametrize("save", [joblib.dump, lambda model, file: file.write_bytes(pickle.dumps(model))])
def test_a_pickle_called_model_bst_is_served(save: Any, tmp_path: Path) -> None:
    """The content decides, not the name."""
    booster = train()
    save(booster, tmp_path / "model.bst")

    assert_same_bits(load_model(LoadSpec(tmp_path)).predict(X), booster.predict(xgb.DMatrix(X)))


@pytest.mark.parametrize("name", ["model.joblib", "model.pkl"])
@pytest.mark.parametrize("format_", ["json", "binary"])
def test_a_saved_booster_called_model_joblib_is_served(name: str, format_: str, tmp_path: Path) -> None:
    """As on AI Platform: what joblib cannot read is given to XGBoost."""
    if format_ == "json":
        train().save_model(tmp_path / "model.json")
        (tmp_path / "model.json").rename(tmp_path / name)
    else:
        shutil.copy(DATA / "1.7.6-logistic.bst", tmp_path / name)

    assert count_rows(load_model(LoadSpec(tmp_path, "XGBOOST")).predict(X)) == 150


ESTIMATORS: dict[str, tuple[Callable[[], Any], bool]] = {
    "classifier": (lambda: xgb.XGBClassifier(n_estimators=8, max_depth=3, n_jobs=2).fit(X, LABELS), True),
    "classes": (lambda: xgb.XGBClassifier(n_estimators=4, max_depth=3).fit(X, CLASSES), True),
    "regressor": (lambda: xgb.XGBRegressor(n_estimators=8, max_depth=3).fit(X, SCORE), True),
    "random forest": (lambda: xgb.XGBRFRegressor(n_estimators=8, max_depth=3).fit(X, SCORE), True),
    "linear": (lambda: xgb.XGBRegressor(booster="gblinear", n_estimators=4).fit(X, SCORE), False),
    "linear classifier": (lambda: xgb.XGBClassifier(booster="gblinear", n_estimators=4).fit(X, LABELS), True),
}


@pytest.mark.parametrize("framework", ["", "XGBOOST", "SCIKIT_LEARN"])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators_answer_through_their_own_predict(name: str, framework: str, tmp_path: Path) -> None:
    """XGBClassifier gives labels, under either framework, since its module names both."""
    make, exact = ESTIMATORS[name]
    estimator = make()
    runtime = served(estimator, tmp_path, "model.joblib", framework=framework)

    assert (runtime.framework.name, runtime.mergeable, runtime.exact) == ("XGBOOST", True, exact)
    assert runtime.input_format({}) == ArrayFormat(4, nullable=True)
    for array in (X[:1], X, X_INT):
        assert_same_bits(answers(runtime, rows(array)), estimator.predict(array))


@pytest.mark.parametrize("kind", ["booster", "estimator"])
def test_named_features_take_lists_and_objects(kind: str, tmp_path: Path) -> None:
    """Trained with names, a model takes lists in their order, and objects in any order of keys."""
    frame = pd.DataFrame(X, columns=NAMES)
    model = train(names=NAMES) if kind == "booster" else xgb.XGBRegressor(n_estimators=4).fit(frame, SCORE)
    runtime = served(model, tmp_path, "model.pkl")
    expected = model.predict(xgb.DMatrix(X, feature_names=NAMES) if kind == "booster" else frame)
    objects = [dict(zip(reversed(NAMES), reversed(row), strict=True)) for row in rows(X)]

    assert_same_bits(answers(runtime, rows(X)), expected)
    assert_same_bits(answers(runtime, objects), expected)
    with pytest.raises(
        InvalidInputs, match=r"Instance 0 has no 'b', 'c', 'd'\. The model takes 'a', 'b', 'c', 'd'"
    ):
        answers(runtime, [{"a": 1}])


def test_categories_are_sent_as_codes(tmp_path: Path) -> None:
    """A model with categorical features is right for codes, whatever its file knows of them."""
    frame = pd.DataFrame({"city": pd.Categorical(RNG.choice(list("xyz"), 150)), "age": X[:, 0]})
    labels = (frame["city"] == "y") * 2.0
    matrix = xgb.DMatrix(frame, label=labels, enable_categorical=True)
    booster = xgb.train({"nthread": 1, "max_depth": 3}, matrix, 5)
    runtime = served(booster, tmp_path, "model.json")

    codes = np.c_[frame["city"].cat.codes, frame["age"]]

    assert_same_bits(answers(runtime, rows(codes)), booster.predict(matrix))


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"b": 1}, "Instance 0 has an object for 'b'; a feature takes one value"),
        ([1], "Instance 0 has a list for 'b'; a feature takes one value"),
        ("text", ""),
    ],
)
def test_named_features_are_numbers_or_null(value: Any, problem: str, tmp_path: Path) -> None:
    """Anything else is refused, also beside numbers."""
    frame = pd.DataFrame(X[:, :2], columns=["a", "b"])
    runtime = served(xgb.train({"nthread": 1}, xgb.DMatrix(frame, label=np.nan_to_num(X[:, 0])), 2), tmp_path)

    for other in (1.5, None):
        with pytest.raises(InvalidInputs, match=f"Could not initialize DMatrix from inputs: {problem}"):
            answers(runtime, [{"a": 1, "b": value}, {"a": other, "b": 2}])


@pytest.mark.parametrize(
    ("instances", "message"),
    [
        ([[1.0, 2.0]], "The instances have 2 values; the model expects 4"),
        ([[1.0, 2.0, 3.0, 4.0], [1.0]], "Could not initialize DMatrix from inputs"),
        ([1.0, 2.0], "Could not initialize DMatrix from inputs: each instance must be a list of numbers"),
        ([["a", "b", "c", "d"]], "Could not initialize DMatrix from inputs: each instance must be a list"),
        (
            [[None, "b", 1, 2]],
            "Could not initialize DMatrix from inputs: could not convert string to float: 'b'",
        ),
        ([[[1.0, 2.0, 3.0, 4.0]]], "Could not initialize DMatrix from inputs"),
        ([[1e300, 0.0, 0.0, 0.0]], "Input data contains `inf` or a value too large"),
        ([{"a": 1.0}], "without column names"),
    ],
)
def test_instances_that_do_not_fit_are_the_clients_fault(
    instances: list[Any], message: str, tmp_path: Path
) -> None:
    """Wrong width, shape or type: InvalidInputs in the contract's words, without native stack traces."""
    runtime = served(train(), tmp_path)

    with pytest.raises(InvalidInputs) as caught:
        runtime.predict(instances)

    assert message in caught.value.detail
    assert "Stack trace" not in caught.value.detail and "/src/" not in caught.value.detail


@pytest.mark.parametrize(
    "parameters",
    [
        {"output_margin": True},
        {"pred_leaf": True},
        {"pred_contribs": True},
        {"pred_contribs": True, "approx_contribs": True},
        {"pred_interactions": True},
        {"iteration_range": [0, 3]},
        {"strict_shape": True},
        {"output_margin": False, "training": False},
    ],
)
def test_extra_fields_are_arguments_of_predict(parameters: dict[str, Any], tmp_path: Path) -> None:
    """Fields beside the instances reach booster.predict; signature_name and validate_features do not."""
    booster = train()
    runtime = served(booster, tmp_path)

    result = answers(runtime, rows(X), signature_name="serving_default", validate_features=True, **parameters)

    assert_same_bits(result, booster.predict(xgb.DMatrix(X), **parameters))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            {"ntree_limit": 3},
            "The predict of a Booster does not take the request field 'ntree_limit'; it takes approx",
        ),
        ({"output_margin": True, "pred_leaf": True}, "One type of prediction at a time."),
        ({"iteration_range": [0, 99]}, "Exception during xgboost prediction: "),
        ({"iteration_range": 3}, "Exception during xgboost prediction: "),
    ],
)
def test_fields_that_do_not_fit_are_the_clients_fault(
    parameters: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """Unknown fields are named; values the library refuses are reported as it words them."""
    with pytest.raises(InvalidInputs) as caught:
        answers(served(train(), tmp_path), rows(X), **parameters)

    assert message in caught.value.detail


def test_an_estimator_names_itself_in_errors(tmp_path: Path) -> None:
    """The scikit-learn interface takes fewer fields than a Booster."""
    runtime = served(ESTIMATORS["classifier"][0](), tmp_path, "model.pkl")

    with pytest.raises(
        InvalidInputs, match="predict of XGBClassifier does not take the request field 'pred_leaf'"
    ):
        runtime.input_format({"pred_leaf": True})


def test_a_failure_of_the_library_is_the_models_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Good rows and no parameters: what fails then is the model."""
    runtime = served(train(), tmp_path)

    def broken(*_: object, **__: object) -> None:
        raise xgb.core.XGBoostError(
            "[01:02:03] /workspace/src/gbm.cc:77: out of luck\nStack trace:\n  [bt] (0)"
        )

    monkeypatch.setattr(xgb.Booster, "predict", broken)

    with pytest.raises(ModelFailed) as caught:
        runtime.predict(X)
    assert caught.value.detail == "Exception during xgboost prediction: out of luck"


@given(
    numbers=st.lists(
        st.lists(
            st.one_of(st.none(), st.integers(-(2**40), 2**40), st.floats(-1e30, 1e30)), min_size=4, max_size=4
        ),
        min_size=1,
        max_size=30,
    )
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_numbers_give_the_librarys_answer(numbers: list[list[Any]], tmp_path: Path) -> None:
    """Nulls, integers, floats and mixtures mean what np.array(instances) makes of them."""
    if not (tmp_path / "model.bst").exists():
        (tmp_path / "model.bst").write_bytes(train().save_raw())
    runtime = load_model(LoadSpec(tmp_path))
    booster = xgb.Booster(model_file=bytearray((tmp_path / "model.bst").read_bytes()))
    expected = booster.predict(xgb.DMatrix(np.array(numbers)))

    assert_same_bits(answers(runtime, numbers), expected)


# Loading.


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("model.bst", b"hello"),
        ("model.json", b'{"layers": []}'),
        ("model.json", b'{"learner": '),
        ("model.ubj", b"{"),
        ("model.bst", b""),
        ("model.bst", b"bs64\tAAAA"),
    ],
)
def test_a_file_xgboost_cannot_read_says_so(name: str, data: bytes, tmp_path: Path) -> None:
    """Not a model: the file and the library's version are named."""
    (tmp_path / name).write_bytes(data)

    with pytest.raises(LoadFailed, match=f"{name} is not a model that XGBoost {xgb.__version__} can read"):
        load_model(LoadSpec(tmp_path, "XGBOOST"))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (LinearRegression().fit([[0], [1]], [0, 1]), "Set the framework to SCIKIT_LEARN, or leave it out."),
        ({"booster": 1}, "model.pkl holds a builtins.dict, which is not an XGBoost model"),
        (xgb.XGBClassifier(), "The XGBClassifier is not fitted: call fit before saving it."),
    ],
)
def test_objects_that_are_no_models_are_refused(model: Any, message: str, tmp_path: Path) -> None:
    """The message says what the file holds and what to do."""
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(model))

    with pytest.raises(LoadFailed) as caught:
        load_model(LoadSpec(tmp_path, "XGBOOST"))
    assert message in caught.value.detail


def test_a_booster_is_not_a_scikit_learn_model(tmp_path: Path) -> None:
    """SCIKIT_LEARN with a Booster in the file names the framework that would do."""
    with pytest.raises(LoadFailed, match=r"holds a xgboost.core.Booster: set the framework to XGBOOST"):
        served(train(), tmp_path, "model.pkl", framework="SCIKIT_LEARN")


def test_threads_are_those_of_the_node(tmp_path: Path) -> None:
    """A model saved with many threads is served with the given number."""
    runtime = served(ESTIMATORS["classifier"][0](), tmp_path, "model.pkl", threads=1)

    config = json.loads(runtime._booster.save_config())  # type: ignore[attr-defined]
    assert config["learner"]["generic_param"]["nthread"] == "1"
    assert runtime._estimator.n_jobs == 1  # type: ignore[attr-defined]


def test_the_recipe_of_the_old_models_is_kept() -> None:
    """Every old model has its expected answers beside it and its version in the recipe."""
    recipe = (DATA / "README.md").read_text()
    files = sorted(DATA.glob("*.bst"))

    assert len(files) == 9
    for file in files:
        assert file.with_suffix(".json").exists()
        assert f"xgboost=={file.name.partition('-')[0]}" in recipe
    assert textwrap.dedent(recipe).count("save_model(") == 1


# Files of other versions.


def version_of(model: xgb.Booster, version: list[int], format_: str) -> bytes:
    """The file as another version would have written it."""
    if format_ == "ubj":
        data = bytes(model.save_raw("ubj"))
        return data[:-7] + b"".join(b"i" + bytes([part]) for part in version) + b"}"
    document = json.loads(model.save_raw("json"))
    document["version"] = version
    return json.dumps(document).encode()


@pytest.mark.parametrize("format_", ["json", "ubj"])
@pytest.mark.parametrize(("version", "served_"), [([9, 1, 0], False), ([2, 1, 0], True)])
def test_a_file_of_a_later_version_is_refused(
    format_: str, version: list[int], served_: bool, tmp_path: Path
) -> None:
    """The message names both versions and what to do."""
    (tmp_path / "model.bst").write_bytes(version_of(train(), version, format_))

    if served_:
        assert count_rows(load_model(LoadSpec(tmp_path)).predict(X)) == 150
    else:
        with pytest.raises(
            LoadFailed,
            match=rf"written by XGBoost 9\.1\.0; this server has {xgb.__version__}.*'xgboost>=9\.1'",
        ):
            load_model(LoadSpec(tmp_path))


def test_a_pickle_of_a_later_version_is_refused(tmp_path: Path) -> None:
    """The version is inside of the booster's state."""
    data = pickle.dumps(train())
    end = data.rindex(b"version[#L") + 18
    (tmp_path / "model.pkl").write_bytes(data[:end] + b"i\x09i\x01i\x00" + data[end + 6 :])

    with pytest.raises(LoadFailed, match=r"written by XGBoost 9\.1\.0"):
        load_model(LoadSpec(tmp_path, "XGBOOST"))


@pytest.mark.parametrize("objective", ["binary:logistic", "reg:squarederror"])
@pytest.mark.parametrize("score", ["[3E-1]", "3E-1"])
def test_base_scores_are_read_as_every_version_writes_them(
    score: str, objective: str, tmp_path: Path
) -> None:
    """A number, and a list of numbers since 3.1."""
    booster = train(objective, base_score=0.3)
    document = json.loads(booster.save_raw("json"))
    document["learner"]["learner_model_param"]["base_score"] = score
    (tmp_path / "model.json").write_text(json.dumps(document))

    assert_same_bits(load_model(LoadSpec(tmp_path)).predict(X), booster.predict(xgb.DMatrix(X)))


@pytest.mark.parametrize("cut", [1, 40, 1000, 3000])
def test_a_file_that_is_cut_off_says_so(cut: int, tmp_path: Path) -> None:
    """XGBoost itself would end the process."""
    (tmp_path / "model.ubj").write_bytes(train().save_raw("ubj")[:-cut])

    with pytest.raises(LoadFailed, match="it is cut off after"):
        load_model(LoadSpec(tmp_path))


@pytest.mark.parametrize("file", ["model.json", "model.ubj"])
@pytest.mark.parametrize("labels", [LABELS, CLASSES], ids=["two", "three"])
def test_an_estimators_file_keeps_to_its_best_iteration(labels: Any, file: str, tmp_path: Path) -> None:
    """A booster has no such habit: it answers with all of its trees."""
    noisy = np.where(RNG.random(150) < 0.3, labels[::-1], labels)
    estimator = xgb.XGBClassifier(n_estimators=40, learning_rate=0.9, early_stopping_rounds=2)
    estimator.fit(X[:90], noisy[:90], eval_set=[(X[90:], noisy[90:])], verbose=False)
    booster = estimator.get_booster()
    chances = estimator.predict_proba(X)
    every = booster.predict(xgb.DMatrix(X))
    (tmp_path / "estimator").mkdir()
    (tmp_path / "booster").mkdir()
    estimator.save_model(tmp_path / "estimator" / file)
    booster.save_model(tmp_path / "booster" / file)
    of_estimator = load_model(LoadSpec(tmp_path / "estimator"))

    assert estimator.best_iteration + 1 < booster.num_boosted_rounds()
    assert_same_bits(of_estimator.predict(X), chances if labels is CLASSES else chances[:, 1])
    assert_same_bits(of_estimator.predict(X, iteration_range=[0, booster.num_boosted_rounds()]), every)
    assert_same_bits(load_model(LoadSpec(tmp_path / "booster")).predict(X), every)


def test_a_model_of_no_rounds_is_refused(tmp_path: Path) -> None:
    """XGBoost 3.1 and later answer another number than earlier ones."""
    booster = xgb.train({"objective": "binary:logistic"}, xgb.DMatrix(X, label=LABELS), 0)

    with pytest.raises(LoadFailed, match="has no boosting rounds"):
        served(booster, tmp_path, "model.json")


def test_categories_are_sent_as_texts_where_the_file_knows_them(tmp_path: Path) -> None:
    """Codes do too, nulls are missing values, and the schema tells the texts."""
    frame = pd.DataFrame({"city": pd.Categorical(RNG.choice(list("xyz"), 150)), "age": X[:, 0]})
    booster = xgb.train({"nthread": 1}, xgb.DMatrix(frame, label=SCORE, enable_categorical=True), 5)
    runtime = served(booster, tmp_path, "model.ubj")
    expected = booster.predict(xgb.DMatrix(frame, enable_categorical=True))
    ages = [row[0] for row in rows(X[:, :1])]
    lists = [[city, age] for city, age in zip(frame["city"], ages, strict=True)]
    inputs = runtime.infer_schema().signatures["serving_default"].inputs

    assert_same_bits(answers(runtime, lists), expected)
    assert_same_bits(answers(runtime, [dict(zip(frame, row, strict=True)) for row in lists]), expected)
    assert count_rows(answers(runtime, [{"city": None, "age": 1}])) == 1
    assert [(one.datatype, one.classes) for one in inputs] == [("BYTES", ("x", "y", "z")), ("FP64", ())]
    with pytest.raises(
        InvalidInputs, match="Instance 0 has the category 'w' for 'city'; the model knows 'x', 'y', 'z'"
    ):
        answers(runtime, [{"city": "w", "age": 1}])


def test_texts_for_categories_that_the_file_does_not_know(tmp_path: Path) -> None:
    """The message says that codes are wanted; so does the schema."""
    matrix = xgb.DMatrix(
        np.c_[np.arange(150) % 3, X[:, 0]],
        label=SCORE,
        feature_names=["city", "age"],
        feature_types=["c", "float"],
        enable_categorical=True,
    )
    runtime = served(xgb.train({"nthread": 1}, matrix, 5), tmp_path, "model.ubj")

    with pytest.raises(InvalidInputs, match=r"a text for 'city'.*send their codes, numbers from 0"):
        answers(runtime, [{"city": "y", "age": 1}])
    assert [one.datatype for one in runtime.infer_schema().signatures["serving_default"].inputs] == [
        "INT64",
        "FP64",
    ]


def test_an_estimator_that_lacks_a_parameter_of_later_versions_predicts(tmp_path: Path) -> None:
    """1.6 pickled none of what 1.7 has brought."""
    estimator = xgb.XGBRegressor(booster="gblinear", n_estimators=2).fit(X, SCORE)
    expected = estimator.predict(X)
    del estimator.feature_types

    assert_same_bits(served(estimator, tmp_path, "model.pkl").predict(X), expected)


def test_a_packed_pickle_that_is_cut_off_says_so(tmp_path: Path) -> None:
    """Its booster's version cannot be looked for."""
    joblib.dump(ESTIMATORS["regressor"][0](), tmp_path / "whole", compress=3)
    (tmp_path / "model.joblib").write_bytes((tmp_path / "whole").read_bytes()[:-200])

    with pytest.raises(LoadFailed, match="cut off"):
        load_model(LoadSpec(tmp_path, "XGBOOST"))
