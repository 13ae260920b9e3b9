"""Which pilot forks the nodes of a version, and which modules a pilot imports.

A list has every module that a node imports between its fork and its first reply, user code aside; a test
checks that (tests/serving/node/test_preload.py). Imports start no thread and run nothing: forks warm up while
they are spare (serving.node.warmup.spare_warmup).
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
# What forks replicas of training jobs.
_TRAINING = ("training.supervisor", "training.thread_pools")
# All packages that pickles may refer to; the missing ones are imported by these.
_SKLEARN = (
    "calibration", "cluster", "compose", "covariance", "cross_decomposition", "decomposition",
    "discriminant_analysis", "dummy", "ensemble", "experimental.enable_iterative_imputer",
    "feature_extraction.text", "feature_selection", "gaussian_process", "impute", "isotonic",
    "kernel_approximation", "kernel_ridge", "linear_model", "manifold", "mixture", "model_selection",
    "multiclass", "multioutput", "naive_bayes", "neighbors", "neural_network", "pipeline", "preprocessing",
    "random_projection", "semi_supervised", "svm", "tree",
)  # fmt: skip
# With treelite: an accelerated booster may be computed by it.
_XGBOOST = (
    "serving.runtimes.xgboost_runtime.runtime",
    "serving.runtimes.xgboost_runtime.tiny_model",
    "serving.acceleration.xgboost.treelite_gtil",
)
# What the pilot of another interpreter imports, as far as installed there.
_EXTERNAL = (
    "numpy",
    "scipy.sparse",
    "pandas",
    "joblib",
    *(f"sklearn.{name}" for name in _SKLEARN),
    "xgboost",
)
_ENVIRONMENT = {
    "PYTHONUNBUFFERED": "1",  # for the nodes: forks inherit what the interpreter read at its start
    **FORK_ENVIRONMENT,
}


def framework_pilot_spec(framework: str, tensorflow: bool, environment: Mapping[str, str]) -> PilotSpec:
    """The pilot for nodes of a framework ("": not known yet).

    `tensorflow`: the version's nodes import TensorFlow; only used if the framework does not imply it.
    `environment` is that of the server's child processes.
    """
    needs_tensorflow = framework == "TENSORFLOW" or (tensorflow and framework in ("CUSTOM", ""))
    key = "tensorflow" if needs_tensorflow and _is_installed("tensorflow") else "tabular"
    warmup = "serving.node.warmup.spare_warmup:tabular" if key == "tabular" else ""
    variables = {**environment, **FRAMEWORK_ENVIRONMENT, **_ENVIRONMENT}
    return PilotSpec(key, _preload(key), variables, warmup)


def interpreter_pilot_spec(interpreter: str, environment: Mapping[str, str]) -> PilotSpec:
    """The pilot of another interpreter; its forks compute models for nodes that connect to them."""
    variables = {**environment, **FRAMEWORK_ENVIRONMENT, **_ENVIRONMENT}
    return PilotSpec(interpreter, _EXTERNAL, variables, command=pilot_command(interpreter))


def _preload(key: str) -> tuple[str, ...]:
    if key == "tensorflow":
        return (*_NODE, "serving.runtimes.tensorflow_runtime.runtime", *_TRAINING)
    xgboost = _XGBOOST if _is_installed("xgboost") else ()
    sklearn = (f"sklearn.{name}" for name in _SKLEARN)
    common = (
        *_NODE,
        "serving.runtimes.sklearn_runtime.runtime",
        *sklearn,
        "serving.runtimes.sklearn_runtime.warm_imports",
    )
    return (*common, *xgboost, "serving.node.warmup.spare_warmup", *_TRAINING)


@lru_cache
def _is_installed(package: str) -> bool:
    return find_spec(package) is not None
