"""Trains models of every kind with the XGBoost of this interpreter, and writes what it predicts.

A program for interpreters from 3.6 on, with numpy, scikit-learn and xgboost and nothing of ours. Its argument
is a folder; it gets a folder for each model with the files that this version writes, and `expected.json`:
`instances`, `predict`, `output_margin`, `pred_leaf` (of a Booster), `estimator` (of an estimator's own
predict).
"""

import json
import os
import pickle
import sys
import warnings

import numpy as np
import xgboost as xgb

warnings.simplefilter("ignore")
VERSION = tuple(int(part) for part in xgb.__version__.split(".")[:2])
RNG = np.random.RandomState(7)
X = RNG.randn(240, 4).astype(np.float32)
X[RNG.rand(*X.shape) < 0.1] = np.nan
FILLED = np.nan_to_num(X)
SCORE = FILLED[:, 0] - 2 * FILLED[:, 1] * (FILLED[:, 2] > 0) + 0.3 * RNG.randn(240)
BINARY = (SCORE > 0).astype(int)
CLASSES = np.digitize(SCORE, [-0.5, 0.5])
POSITIVE = np.exp(SCORE / 2)
COUNTS = np.round(POSITIVE)
GROUPS = [24] * 10
PROBE = X[:40]

LABELS = {
    "reg:linear": SCORE,
    "reg:squarederror": SCORE,
    "reg:squaredlogerror": POSITIVE,
    "reg:logistic": BINARY,
    "reg:pseudohubererror": SCORE,
    "reg:absoluteerror": SCORE,
    "reg:quantileerror": SCORE,
    "reg:gamma": POSITIVE,
    "reg:tweedie": COUNTS,
    "binary:logistic": BINARY,
    "binary:logitraw": BINARY,
    "binary:hinge": BINARY,
    "count:poisson": COUNTS,
    "survival:cox": POSITIVE,
    "survival:aft": POSITIVE,
    "multi:softmax": CLASSES,
    "multi:softprob": CLASSES,
    "rank:pairwise": CLASSES,
    "rank:ndcg": CLASSES,
    "rank:map": BINARY,
}
SQUARED = "reg:squarederror" if VERSION >= (0, 90) else "reg:linear"
SOME = (SQUARED, "binary:logistic", "multi:softprob", "count:poisson")


def matrix(objective, names=None):
    labels = LABELS[objective]
    if objective == "survival:aft":
        made = xgb.DMatrix(X, feature_names=names)
        made.set_float_info("label_lower_bound", labels)
        made.set_float_info("label_upper_bound", labels * 1.5)
        return made
    made = xgb.DMatrix(X, label=labels, feature_names=names)
    if objective.startswith("rank:"):
        made.set_group(GROUPS)
    return made


def train(objective, rounds=6, names=None, **more):
    params = {"objective": objective, "max_depth": 3, "seed": 1, "nthread": 1}
    if objective.startswith("multi:"):
        params["num_class"] = 3
    if objective == "reg:quantileerror":
        params["quantile_alpha"] = 0.4
    params.update(more)
    return xgb.train(params, matrix(objective, names), rounds)


def early_stopped():
    return xgb.train(
        {"objective": SQUARED, "max_depth": 4, "eta": 0.9, "seed": 1, "nthread": 1},
        xgb.DMatrix(X[:120], label=SCORE[:120]),
        60,
        evals=[(xgb.DMatrix(X[120:], label=SCORE[120:]), "valid")],
        early_stopping_rounds=3,
        verbose_eval=False,
    )


def attributes():
    booster = train(SQUARED)
    booster.set_attr(owner="caf\u00e9", empty="", note="x" * 300)
    return booster


def multi_target(**more):
    made = xgb.DMatrix(X, label=np.c_[SCORE, -SCORE, POSITIVE])
    return xgb.train(dict({"nthread": 1, "max_depth": 3, "tree_method": "hist"}, **more), made, 4)


def boosters():
    """Names and functions that train."""
    for objective in LABELS:
        yield objective.replace(":", "-"), lambda objective=objective: train(objective)
    for objective in SOME:
        name = objective.replace(":", "-")
        yield "dart-" + name, lambda objective=objective: train(objective, booster="dart", rate_drop=0.5)
        yield "gblinear-" + name, lambda objective=objective: train(objective, booster="gblinear")
        yield "base-" + name, lambda objective=objective: train(objective, base_score=0.3)
        yield (
            "forest-" + name,
            lambda objective=objective: train(objective, rounds=2, num_parallel_tree=3, subsample=0.7),
        )
    yield "pruned", lambda: train(SQUARED, rounds=8, gamma=2.0, max_depth=6)
    yield (
        "leafwise",
        lambda: train(
            "binary:logistic", tree_method="hist", grow_policy="lossguide", max_leaves=9, max_depth=0
        ),
    )
    yield "names", lambda: train("binary:logistic", names=["a", "b", "c", "d"])
    yield "attributes", attributes
    yield "early-stopped", early_stopped
    yield "one-round", lambda: train("binary:logistic", rounds=1)
    yield "no-rounds", lambda: train("binary:logistic", rounds=0)
    if VERSION >= (1, 6):
        yield "targets", multi_target
    if VERSION >= (2, 0):
        yield "vector-leaf", lambda: multi_target(multi_strategy="multi_output_tree")
        yield "quantiles", lambda: train("reg:quantileerror", quantile_alpha=[0.1, 0.5, 0.9])


def stopping(estimator, labels):
    """Fit with early stopping, as this version spells it."""
    valid = {"eval_set": [(X[120:], labels[120:])], "verbose": False}
    if VERSION >= (1, 6):
        estimator.set_params(early_stopping_rounds=3)
    else:
        valid["early_stopping_rounds"] = 3
    return estimator.fit(X[:120], labels[:120], **valid)


def estimators():
    """Names and functions that fit."""
    few = {"n_estimators": 5, "max_depth": 3, "n_jobs": 1}
    many = {"n_estimators": 60, "max_depth": 4, "learning_rate": 0.9, "n_jobs": 1}
    noisy = np.where(RNG.rand(240) < 0.25, 1 - BINARY, BINARY)
    yield "classifier", lambda: xgb.XGBClassifier(**few).fit(X, BINARY)
    yield "classes", lambda: xgb.XGBClassifier(**few).fit(X, CLASSES)
    yield "regressor", lambda: xgb.XGBRegressor(**few).fit(X, SCORE)
    yield "dart-regressor", lambda: xgb.XGBRegressor(booster="dart", **few).fit(X, SCORE)
    yield "linear-regressor", lambda: xgb.XGBRegressor(booster="gblinear", **few).fit(X, SCORE)
    yield "ranker", lambda: xgb.XGBRanker(**few).fit(X, CLASSES, group=GROUPS)
    yield "stopped-classifier", lambda: stopping(xgb.XGBClassifier(**many), noisy)
    yield "stopped-classes", lambda: stopping(xgb.XGBClassifier(**many), CLASSES)
    yield "stopped-regressor", lambda: stopping(xgb.XGBRegressor(**many), SCORE)
    if hasattr(xgb, "XGBRFRegressor"):
        yield "forest-regressor", lambda: xgb.XGBRFRegressor(**few).fit(X, SCORE)
        yield "forest-classifier", lambda: xgb.XGBRFClassifier(**few).fit(X, BINARY)


def listed(array):
    """Nested lists; None for NaN."""
    return json.loads(json.dumps(np.asarray(array).tolist()).replace("NaN", "null"))


def answers(booster, name):
    asked = xgb.DMatrix(PROBE, feature_names=booster.feature_names)
    told = {}
    for kind in ("predict", "output_margin", "pred_leaf"):
        try:
            more = {} if kind == "predict" else {kind: True}
            if VERSION < (1, 0) and name.startswith("dart"):  # else it drops trees at random
                more["ntree_limit"] = 1 << 20
            told[kind] = listed(booster.predict(asked, **more))
        except Exception:  # a linear model has no leaves
            continue
    return told


def best(estimator):
    """What its booster answers with the rounds that the estimator predicts with, if its file tells."""
    booster = estimator.get_booster()
    if not hasattr(booster, "best_iteration") or VERSION < (1, 0) or booster.attr("best_iteration") is None:
        return booster.predict(xgb.DMatrix(PROBE))
    if VERSION < (1, 4):
        return booster.predict(xgb.DMatrix(PROBE), ntree_limit=booster.best_ntree_limit)
    return booster.predict(xgb.DMatrix(PROBE), iteration_range=(0, int(booster.attr("best_iteration")) + 1))


def files(model):
    """The names of the files that this version writes, and what writes each."""
    booster = model if isinstance(model, xgb.Booster) else model.get_booster()
    yield "model.bst", getattr(model, "save_model", booster.save_model)
    if VERSION >= (1, 0):
        yield "model.json", model.save_model
    if VERSION >= (1, 6):
        yield "model.ubj", model.save_model
    if isinstance(model, xgb.Booster) and (1, 6) <= VERSION < (3, 1):
        yield "deprecated.bst", lambda path: put(path, booster.save_raw("deprecated"))
    yield "model.pkl", lambda path: put(path, pickle.dumps(model, protocol=2))


def put(path, data):
    with open(path, "wb") as file:
        file.write(data)


def document(told):
    return json.dumps(dict(told, version=xgb.__version__, instances=listed(PROBE))).encode()


def main(root, only):
    for name, make in list(boosters()) + list(estimators()):
        if only and name not in only:
            continue
        folder = os.path.join(root, name)
        os.makedirs(folder)
        try:
            model = make()
        except Exception as error:  # an objective of another version
            os.rmdir(folder)
            print("%s: %s" % (name, str(error).strip().split("\n")[0][:120]))
            continue
        if isinstance(model, xgb.Booster):
            told = answers(model, name)
        else:
            told = {"estimator": listed(model.predict(PROBE)), "predict": listed(best(model))}
        for file, save in files(model):
            try:
                save(os.path.join(folder, file))
            except Exception as error:  # the binary format has no place for it
                print("%s/%s: %s" % (name, file, str(error).strip().split("\n")[0][:120]))
        put(os.path.join(folder, "expected.json"), document(told))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
