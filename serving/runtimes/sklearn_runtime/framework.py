"""What is said of scikit-learn; see `serving.frameworks`."""

from __future__ import annotations

from serving.frameworks import Framework, ModelFile

# All packages that pickles may refer to; the missing ones are imported by these.
_MODULES = (
    "calibration", "cluster", "compose", "covariance", "cross_decomposition", "decomposition",
    "discriminant_analysis", "dummy", "ensemble", "experimental.enable_iterative_imputer",
    "feature_extraction.text", "feature_selection", "gaussian_process", "impute", "isotonic",
    "kernel_approximation", "kernel_ridge", "linear_model", "manifold", "mixture", "model_selection",
    "multiclass", "multioutput", "naive_bayes", "neighbors", "neural_network", "pipeline", "preprocessing",
    "random_projection", "semi_supervised", "svm", "tree",
)  # fmt: skip

FRAMEWORK = Framework(
    name="SCIKIT_LEARN",
    title="scikit-learn",
    platform="sklearn",
    load="serving.runtimes.sklearn_runtime.runtime:load_model",
    library="sklearn",
    packages=frozenset({"sklearn"}),
    distributions=("scikit-learn", "joblib", "pandas", "scipy", "threadpoolctl"),
    # Estimators of other libraries too, as far as their framework does not recognize them.
    model_files=(
        ModelFile(name="model.joblib", suffixes=(".joblib",)),
        ModelFile(name="model.pkl", suffixes=(".pkl", ".pickle")),
    ),
    has_methods=True,
    predictor_loaders={"model.joblib": "SCIKIT_LEARN", "model.pkl": "SCIKIT_LEARN"},
    predictor_preload=(
        "numpy",
        "scipy.sparse",
        "pandas",
        "joblib",
        *(f"sklearn.{name}" for name in _MODULES),
    ),
    tells_saved_version=True,
    batch_rows=1024,
    verified_first=True,
    preload=(
        "serving.runtimes.sklearn_runtime.runtime",
        *(f"sklearn.{name}" for name in _MODULES),
        "serving.runtimes.sklearn_runtime.warm_imports",
        "serving.runtimes.sklearn_runtime.tiny_model",
    ),
    tiny_model="serving.runtimes.sklearn_runtime.tiny_model:write_tiny_model",
)
