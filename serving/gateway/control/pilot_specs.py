"""Which pilot forks the nodes of a version, and which modules a pilot imports.

A list has every module that a node imports between its fork and its first reply, user code aside; a test
checks that (tests/serving/node/test_preload.py). Imports start no thread and run nothing: forks warm up while
they are spare (serving.node.warmup.spare_warmup).
"""

from __future__ import annotations

from collections.abc import Mapping

from autoscaler.pools import PilotSpec
from serving.config import FORK_ENVIRONMENT, FRAMEWORK_ENVIRONMENT
from serving.frameworks import DEFAULT_PILOT, find_user_code_framework, list_installed, load_frameworks
from serving.predictor import pilot_command

_NODE = (
    "serving.node.main",
    "serving.runtimes.framework_detection",
    "serving.node.codecs.ai_platform",
    "serving.node.codecs.open_inference_rest",
    "serving.node.codecs.open_inference_grpc",
    "serving.node.codecs.tensorflow_rest",
    "serving.node.codecs.tensorflow_grpc",
)
_SPARE_WARMUP = "serving.node.warmup.spare_warmup"
# What forks replicas of training jobs.
_TRAINING = ("training.supervisor", "training.replicas.thread_pools")
# What suggests trials of studies; the default pilot has its libraries anyway.
_TUNING = ("tuning.suggester",)
_ENVIRONMENT = {
    # for replicas of training jobs, see `training.cluster`; nodes have one thread
    "OMP_WAIT_POLICY": "passive",
    "PYTHONUNBUFFERED": "1",  # for the nodes: forks inherit what the interpreter read at its start
    **FORK_ENVIRONMENT,
}


def framework_pilot_spec(framework: str, needed: str, environment: Mapping[str, str]) -> PilotSpec:
    """The pilot for nodes of a framework ("": not known yet).

    `needed` is the key of the one that has imported what the nodes need, as far as that is known; it decides
    where the framework does not. `environment` is that of the server's child processes.
    """
    known = load_frameworks().get(framework)
    key = needed if known is None or known.runs_user_code else known.pilot
    return _build_pilot_spec(key if key in _list_keys() else DEFAULT_PILOT, environment)


def list_framework_pilots(environment: Mapping[str, str]) -> list[PilotSpec]:
    """All pilots that have a framework to import here."""
    return [_build_pilot_spec(key, environment) for key in _list_keys()]


def interpreter_pilot_spec(interpreter: str, environment: Mapping[str, str]) -> PilotSpec:
    """The pilot of another interpreter; its forks compute models for nodes that connect to them.

    It imports what is installed there of its modules.
    """
    modules = [module for framework in load_frameworks().values() for module in framework.predictor_preload]
    variables = {**environment, **FRAMEWORK_ENVIRONMENT, **_ENVIRONMENT}
    return PilotSpec(interpreter, tuple(modules), variables, command=pilot_command(interpreter))


def _list_keys() -> tuple[str, ...]:
    return tuple(dict.fromkeys(framework.pilot for framework in list_installed()))


def _build_pilot_spec(key: str, environment: Mapping[str, str]) -> PilotSpec:
    """The pilot that imports all installed frameworks of this key."""
    frameworks = [one for one in list_installed() if one.pilot == key and not one.runs_user_code]
    modules = [module for framework in frameworks for module in framework.preload]
    warms_up = any(framework.tiny_model or framework.threadless_warmup for framework in frameworks)
    modules += [_SPARE_WARMUP] if warms_up else []
    return PilotSpec(
        key,
        (
            *_NODE,
            *find_user_code_framework().preload,
            *modules,
            *_TRAINING,
            *(_TUNING if key == DEFAULT_PILOT else ()),
        ),
        {**environment, **FRAMEWORK_ENVIRONMENT, **_ENVIRONMENT},
        f"{_SPARE_WARMUP}:warm_up_frameworks" if warms_up else "",
    )
