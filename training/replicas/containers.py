"""Replicas that run in containers: their images, and the command line of each."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from serving.container_engine import SUPERVISOR, fetch_image
from training.messages import ContainerEngine, ContainerProgram, ReplicaGroup

# The priority of a replica, as its process would have it by the values of `training.replicas.child`.
_CPU_SHARES, _OOM_SCORE = 110, 800
_METRIC_FILE = "CLOUD_ML_HP_METRIC_FILE"
_CREDENTIALS = "GOOGLE_APPLICATION_CREDENTIALS"
# How the supervisor of a container is told that this is a program of its own; see there.
_NO_REPORT = "-"


def fetch_images(engine: ContainerEngine, groups: Sequence[ReplicaGroup]) -> dict[str, str]:
    """The ids of all images, pulled where they are missing. Raises InvalidArgument."""
    images = {group.container.image for group in groups if group.container is not None}
    return {image: fetch_image(engine.path, image, engine.environment) for image in sorted(images)}


def build_command(
    engine: ContainerEngine,
    image: str,
    program: ContainerProgram,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    name: str,
    job_dir: str,
    memory_bytes: int,
    lifeline: int,
) -> list[str]:
    """Runs a container as a program, until it ends or `lifeline` is closed.

    `arguments` are those of a program that brings none. Replicas reach each other at addresses of this
    machine, so they have its network. `job_dir` is at the same path inside.
    """
    command = [sys.executable, "-I", str(SUPERVISOR), str(lifeline), _NO_REPORT, name]
    command += [engine.path, "run", "--rm", "--name", name, "--pull", "never", "--network", "host"]
    command += ["--security-opt", "no-new-privileges"]
    command += ["--cpu-shares", str(_CPU_SHARES), "--oom-score-adj", str(_OOM_SCORE)]
    if memory_bytes:
        command += ["--memory", str(memory_bytes)]
    for folder in _list_mounts(environment, job_dir):
        command += ["--volume", folder]
    for key, value in environment.items():
        command += ["--env", f"{key}={value}"]
    if program.entrypoint:
        command += ["--entrypoint", program.entrypoint[0]]
    own = (*program.entrypoint[1:], *program.arguments)
    return [*command, image, *(own if program.entrypoint or program.arguments else arguments)]


def make_name(job: str, task: str) -> str:
    """A name that no other container has, for people who list them."""
    return f"pilotlight-{job}-{task}-{secrets.token_hex(4)}"


def _list_mounts(environment: Mapping[str, str], job_dir: str) -> list[str]:
    mounts = [f"{job_dir}:{job_dir}"] if job_dir.startswith("/") else []
    if reports := environment.get(_METRIC_FILE):
        mounts.append(f"{Path(reports).parent}:{Path(reports).parent}")
    credentials = environment.get(_CREDENTIALS, "")
    if credentials and Path(credentials).is_file():
        mounts.append(f"{credentials}:{credentials}:ro")
    return mounts
