"""How the supervisor of a training job is forked from a pilot."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from autoscaler.node_process import LaunchSpec
from autoscaler.pools import PilotSpec
from serving.artifacts.package_imports import find_archive_framework
from serving.gateway.jobs.job_kind import JOB_PROCESS, ForkPlan
from training.messages import TrainingRequest

_ENTRY = "training.supervisor:start"

# The pilot that has imported a framework, by its name; "": any.
SelectPilot = Callable[[str], PilotSpec]


def plan_fork(
    request: TrainingRequest, select_pilot: SelectPilot, environment: Mapping[str, str]
) -> ForkPlan | None:
    """Plan the fork; None if another interpreter, or a container, runs the program.

    The pilot is that of the framework in the packages, as far as these are files of this machine. A program
    that was forked from another imports what it needs itself. Blocks.
    """
    if request.interpreter or request.engine is not None:
        return None
    framework = find_archive_framework(request.packages)
    pilot = select_pilot("" if framework is None else framework.name)
    arguments = {"request": msgspec.to_builtins(request)}
    launch = LaunchSpec(_ENTRY, arguments, environment, watches_lifeline=True, name=JOB_PROCESS)
    return ForkPlan(pilot, launch)
