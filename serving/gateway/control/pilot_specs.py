"""Which pilot the nodes of a version are forked from, and what a pilot imports, by name only.

A list holds all that a node imports between its fork and its first answer, user code aside; that is tested
(tests/serving/node/test_preload.py). Importing starts no thread and runs nothing;
what is run ahead, forks run while they wait (serving.node.warmup.spare_warmup).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec

from autoscaler.pools import PilotSpec
from serving.config import FORK_ENVIRONMENT, FRAMEWORK_ENVIRONMENT
from serving.predictor import pilot_command

_NODE = (
    "serving.node.main",
    "serving.runtimes.framework_detection",
    "serving.runtimes.custom_runtime.runtime",
    "serving.node.codecs.ai_platform",
    "serving.node.codecs.open_inference_rest",
    "serving.node.codecs.open_inference_grpc",
    "serving.node.codecs.tensorflow_rest",
    "serving.node.codecs.tensorflow_grpc",
)
# Wherever a pickle may find its classes. Those that are left out come with these.
_SKLEARN = (
    "calibration", "cluster", "compose", "covariance", "cross_decomposition", "decomposition",
    "discriminant_analysis", "dummy", "ensemble", "experimental.enable_iterative_imputer",
    "feature_extraction.text", "feature_selection", "gaussian_process", "impute", "isotonic",
    "kernel_approximation", "kernel_ridge", "linear_model", "manifold", "mixture", "model_selection",
    "multiclass", "multioutput", "naive_bayes", "neighbors", "neural_network", "pipeline", "preprocessing",
    "random_projection", "semi_supervised", "svm", "tree",
)  # fmt: skip
# treelite with it: a booster that was studied may be computed there.
_XGBOOST = (
    "serving.runtimes.xgboost_runtime.runtime",
    "serving.runtimes.xgboost_runtime.tiny_model",
    "serving.acceleration.xgboost.treelite_gtil",
)
# What another interpreter imports, as far as it has it.
_EXTERNAL = (
    "numpy",
    "scipy.sparse",
    "pandas",
    "joblib",
    *(f"sklearn.{name}" for name in _SKLEARN),
    "xgboost",
)
_ENVIRONMENT = {
    "PYTHONUNBUFFERED": "1",  # as nodes have it: they inherit what the interpreter read at its start
    **FORK_ENVIRONMENT,
}


def framework_pilot_spec(framework: str, tensorflow: bool, environment: Mapping[str, str]) -> PilotSpec:
    """The pilot for nodes of a framework ("": not known yet).

    `tensorflow` says whether it takes TensorFlow to serve the version, and counts where the framework does
    not tell. `environment` is that of the server's processes.
    """
    wanted = framework == "TENSORFLOW" or (tensorflow and framework in ("CUSTOM", ""))
    key = "tensorflow" if wanted and _is_installed("tensorflow") else "tabular"
    rehearsal = "serving.node.warmup.spare_warmup:tabular" if key == "tabular" else ""
    variables = {**environment, **FRAMEWORK_ENVIRONMENT, **_ENVIRONMENT}
    return PilotSpec(key, _preload(key), variables, rehearsal)


def interpreter_pilot_spec(interpreter: str, environment: Mapping[str, str]) -> PilotSpec:
    """The pilot of another interpreter, whose libraries compute models for nodes that connect to it."""
    variables = {**environment, **FRAMEWORK_ENVIRONMENT, **_ENVIRONMENT}
    return PilotSpec(interpreter, _EXTERNAL, variables, command=pilot_command(interpreter))


def _preload(key: str) -> tuple[str, ...]:
    if key == "tensorflow":
        return (*_NODE, "serving.runtimes.tensorflow_runtime.runtime")
    xgboost = _XGBOOST if _is_installed("xgboost") else ()
    sklearn = (f"sklearn.{name}" for name in _SKLEARN)
    common = (
        *_NODE,
        "serving.runtimes.sklearn_runtime.runtime",
        *sklearn,
        "serving.runtimes.sklearn_runtime.warm_imports",
    )
    return (*common, *xgboost, "serving.node.warmup.spare_warmup")


@lru_cache
def _is_installed(package: str) -> bool:
    """Whether there is such a package; it is not imported."""
    return find_spec(package) is not None
