"""Fits estimators of every kind with the library of this interpreter, and writes what they predict.

A program for interpreters from 3.6 on, with numpy, scikit-learn or xgboost, and nothing of ours. Its
arguments are the library and a folder, which gets a folder for each model with `model.joblib` and
`expected.json`: `rows` and `predictions`.
"""

import importlib
import json
import os
import sys
import warnings

import joblib
import numpy as np

warnings.simplefilter("ignore")
RNG = np.random.RandomState(5)
X = RNG.randn(120, 4).round(3)
SCORE = X[:, 0] - 2 * X[:, 1] * (X[:, 2] > 0)
CLASSES = np.digitize(SCORE, [-0.5, 0.5])
LABELS = np.array(["low", "middle", "high"])[CLASSES]
BINARY = (SCORE > 0).astype(int)
TEXTS = ["a good day", "bad night", "good", "bad"] * 5
COLUMNS = np.array([["x", 1.0], ["y", 2.0], ["x", 3.0], ["z", 0.5]] * 5, dtype=object)


def sklearn_models():
    from sklearn.cluster import KMeans
    from sklearn.compose import ColumnTransformer
    from sklearn.decomposition import PCA
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.ensemble import (
        AdaBoostClassifier,
        BaggingClassifier,
        ExtraTreesRegressor,
        GradientBoostingRegressor,
        RandomForestClassifier,
    )
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
    from sklearn.naive_bayes import GaussianNB
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler
    from sklearn.svm import SVC
    from sklearn.tree import DecisionTreeRegressor

    holes = X.copy()
    holes[::7, 1] = np.nan
    encoder = ColumnTransformer([("o", OneHotEncoder(handle_unknown="ignore"), [0])], remainder="passthrough")
    numbers = {
        "forest": RandomForestClassifier(20, random_state=0).fit(X, CLASSES),
        "labels": RandomForestClassifier(5, random_state=0).fit(X, LABELS),
        "boosting": GradientBoostingRegressor(n_estimators=20, random_state=0).fit(X, SCORE),
        "logistic": LogisticRegression(max_iter=500).fit(X, CLASSES),
        "ridge": Ridge().fit(X, SCORE),
        "svc": SVC().fit(X, CLASSES),
        "bayes": GaussianNB().fit(X, CLASSES),
        "neighbors": KNeighborsClassifier().fit(X, CLASSES),
        "kmeans": KMeans(3, random_state=0, n_init=3).fit(X),
        "tree": DecisionTreeRegressor(random_state=0).fit(X, SCORE),
        "pipeline": make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)).fit(X, LABELS),
        "imputer": make_pipeline(SimpleImputer(), Ridge()).fit(holes, SCORE),
        "pca": make_pipeline(PCA(2), SVC()).fit(X, CLASSES),
        "network": MLPClassifier((8,), max_iter=200, random_state=0).fit(X, CLASSES),
        "gaussian": GaussianProcessRegressor().fit(X[:50], SCORE[:50]),
        "discriminant": LinearDiscriminantAnalysis().fit(X, CLASSES),
        "adaboost": AdaBoostClassifier(n_estimators=10, random_state=0).fit(X, CLASSES),
        "bagging": BaggingClassifier(n_estimators=5, random_state=0).fit(X, CLASSES),
        "extra": ExtraTreesRegressor(10, random_state=0).fit(X, SCORE),
    }
    for name, model in numbers.items():
        yield name, model, X[:7].tolist(), X[:7]
    text = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(TEXTS, [1, 0, 1, 0] * 5)
    yield "text", text, ["good night", "bad"], ["good night", "bad"]
    columns = make_pipeline(encoder, LinearRegression()).fit(COLUMNS, [1.0, 2.0, 3.0, 4.0] * 5)
    yield "columns", columns, COLUMNS[:3].tolist(), COLUMNS[:3]


def more_sklearn_models():
    from sklearn.cluster import MiniBatchKMeans
    from sklearn.decomposition import TruncatedSVD
    from sklearn.ensemble import GradientBoostingClassifier, IsolationForest, RandomForestRegressor
    from sklearn.feature_selection import SelectKBest
    from sklearn.impute import SimpleImputer
    from sklearn.kernel_approximation import Nystroem
    from sklearn.linear_model import BayesianRidge, LogisticRegressionCV, SGDClassifier
    from sklearn.mixture import GaussianMixture
    from sklearn.model_selection import GridSearchCV
    from sklearn.multioutput import MultiOutputRegressor
    from sklearn.naive_bayes import MultinomialNB
    from sklearn.neighbors import KNeighborsRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import KBinsDiscretizer, MinMaxScaler, OrdinalEncoder, PolynomialFeatures
    from sklearn.svm import SVR, LinearSVC
    from sklearn.tree import DecisionTreeClassifier

    holes = X.copy()
    holes[::7, 1] = np.nan
    median = SimpleImputer(strategy="median")
    if "add_indicator" in median.get_params():  # since 0.21
        median.set_params(add_indicator=True)
    numbers = {
        "minibatch": MiniBatchKMeans(3, random_state=0, n_init=3).fit(X),
        "svd": make_pipeline(TruncatedSVD(2, random_state=0), LogisticRegressionCV(cv=3)).fit(X, CLASSES),
        "boosted-classes": GradientBoostingClassifier(n_estimators=10, random_state=0).fit(X, LABELS),
        "isolation": IsolationForest(n_estimators=10, random_state=0).fit(X),
        "forest-regressor": RandomForestRegressor(10, random_state=0).fit(X, SCORE),
        "selected": make_pipeline(SelectKBest(k=2), DecisionTreeClassifier(random_state=0)).fit(X, CLASSES),
        "indicator": make_pipeline(median, SVR()).fit(holes, SCORE),
        "nystroem": make_pipeline(Nystroem(n_components=10, random_state=0), BayesianRidge()).fit(X, SCORE),
        "stochastic": SGDClassifier(random_state=0, max_iter=20, tol=None).fit(X, CLASSES),
        "mixture": GaussianMixture(2, random_state=0).fit(X),
        "grid": GridSearchCV(SVR(), {"C": [0.5, 1.0]}, cv=3).fit(X, SCORE),
        "multioutput": MultiOutputRegressor(SVR()).fit(X, X[:, :2]),
        "counts": make_pipeline(MinMaxScaler(), MultinomialNB()).fit(X, CLASSES),
        "neighbors-regressor": KNeighborsRegressor().fit(X, SCORE),
        "bins": make_pipeline(KBinsDiscretizer(3), LinearSVC(random_state=0)).fit(X, CLASSES),
        "polynomial": make_pipeline(PolynomialFeatures(2), BayesianRidge()).fit(X, SCORE),
    }
    for name, model in numbers.items():
        yield name, model, X[:7].tolist(), X[:7]
    ordinal = make_pipeline(OrdinalEncoder(), DecisionTreeClassifier(random_state=0))
    texts = np.array([["x", "u"], ["y", "v"], ["z", "u"], ["x", "v"]] * 5, dtype=object)
    yield "ordinal", ordinal.fit(texts, [0, 1, 2, 3] * 5), texts[:4].tolist(), texts[:4]
    try:
        importlib.import_module("sklearn.experimental.enable_hist_gradient_boosting")
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    except ImportError:  # before 0.21
        return
    few = {"max_iter": 5, "random_state": 0}
    yield (
        "histogram", HistGradientBoostingRegressor(**few).fit(X, SCORE), X[:7].tolist(), X[:7],
    )  # fmt: skip
    classes = HistGradientBoostingClassifier(**few).fit(X, BINARY)
    yield "histogram-classes", classes, X[:7].tolist(), X[:7]


def xgboost_models():
    import xgboost as xgb

    few = {"n_estimators": 5, "max_depth": 3, "n_jobs": 1}
    regressions = ["reg:squarederror", "reg:gamma", "reg:tweedie", "count:poisson"]
    models = {
        "classifier": xgb.XGBClassifier(**few).fit(X, BINARY),
        "classes": xgb.XGBClassifier(**few).fit(X, CLASSES),
        "logitraw": xgb.XGBClassifier(objective="binary:logitraw", **few).fit(X, BINARY),
        "hinge": xgb.XGBClassifier(objective="binary:hinge", **few).fit(X, BINARY),
        "logistic": xgb.XGBRegressor(objective="reg:logistic", **few).fit(X, BINARY),
        "dart": xgb.XGBRegressor(booster="dart", **few).fit(X, SCORE),
        "linear": xgb.XGBRegressor(booster="gblinear", **few).fit(X, SCORE),
        "dart-classes": xgb.XGBClassifier(booster="dart", **few).fit(X, CLASSES),
        "linear-classifier": xgb.XGBClassifier(booster="gblinear", **few).fit(X, BINARY),
        "base": xgb.XGBRegressor(base_score=0.3, **few).fit(X, SCORE),
        "forest-regressor": xgb.XGBRFRegressor(**few).fit(X, SCORE),
        "forest-classifier": xgb.XGBRFClassifier(**few).fit(X, BINARY),
        "ranker": xgb.XGBRanker(**few).fit(X, CLASSES, group=[12] * 10),
        "pruned": xgb.XGBRegressor(gamma=2.0, **few).fit(X, SCORE),
        "leafwise": xgb.XGBRegressor(tree_method="hist", grow_policy="lossguide", max_leaves=9, **few).fit(
            X, SCORE
        ),
        "subsampled": xgb.XGBRegressor(subsample=0.7, random_state=1, **few).fit(X, SCORE),
    }
    for objective in regressions:
        models[objective.replace(":", "-")] = xgb.XGBRegressor(objective=objective, **few).fit(
            X, np.exp(SCORE / 3)
        )
    for name, model in models.items():
        yield name, model, X[:7].tolist(), X[:7]
    plain = xgb.train({"max_depth": 3, "nthread": 1}, xgb.DMatrix(X, label=SCORE), 5)
    yield "booster", plain, X[:7].tolist(), xgb.DMatrix(X[:7])


LIBRARIES = {
    "scikit-learn": sklearn_models,
    "scikit-learn-more": more_sklearn_models,
    "xgboost": xgboost_models,
}


def main(library, root):
    for name, model, rows, given in LIBRARIES[library]():
        folder = os.path.join(root, name)
        os.makedirs(folder)
        joblib.dump(model, os.path.join(folder, "model.joblib"))
        with open(os.path.join(folder, "expected.json"), "w") as file:
            json.dump({"rows": rows, "predictions": model.predict(given).tolist()}, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
