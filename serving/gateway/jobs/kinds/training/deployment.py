"""Finds what a training job has made that can be deployed, and plans the version of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from autoscaler.child_launcher import module_command, run_child
from serving.artifacts.local_folder_policy import LocalFolderPolicy
from serving.errors import FailedPrecondition, NotFound, Unavailable
from serving.gateway.catalog.jobs import PlannedVersion
from serving.gateway.state.records import JobRecord
from serving.names import ModelName
from serving.resources import DeploymentOptions, TrainingInput, Version

_COMMAND = module_command("training.deployable_models")
_TIMEOUT, _GRACE_SECONDS = 120.0, 1.0
_MAX_NAMES = 10


class _DiscoveryResult(msgspec.Struct, frozen=True):
    """A `training.deployable_models.ModelSearchResult`, whose module loads a storage client."""

    models: tuple[str, ...] = ()
    message: str = ""


async def find_models(
    job_dir: str, folders: LocalFolderPolicy, environment: Mapping[str, str]
) -> Sequence[str]:
    """List the model folders below a job's folder by a child process.

    Raises FailedPrecondition and Unavailable.
    """
    stdin = msgspec.json.encode(
        {"folder": job_dir, "allowed_folders": folders.allowed, "refused_folders": folders.refused}
    )
    try:
        async with (
            asyncio.timeout(_TIMEOUT),
            run_child(_COMMAND, environment=environment, stdin=stdin, grace_seconds=_GRACE_SECONDS) as child,
        ):
            found = msgspec.json.decode(await child.output.read(), type=_DiscoveryResult)
    except TimeoutError:
        raise Unavailable(f"{job_dir} could not be listed within {_TIMEOUT:g} s. Try again.") from None
    except msgspec.DecodeError:
        raise Unavailable(f"The listing of {job_dir} ended without an answer. Try again.") from None
    if found.message:
        raise FailedPrecondition(found.message)
    return found.models


def choose_model(models: Sequence[str], job_dir: str, path: str) -> str:
    """The one model folder that is `path`, or below it.

    Raises NotFound, and FailedPrecondition for several.
    """
    root = f"{job_dir.removeprefix('file://').rstrip('/')}/{path.strip('/')}".rstrip("/")
    found = [model for model in models if model == root or model.startswith(f"{root}/")]
    if not found:
        hint = (
            f"There are {_list_names(models)}."
            if models
            else "A program leaves one below its --job-dir: a SavedModel, model.joblib, model.bst or another "
            "file that versions are deployed from."
        )
        raise NotFound(f"There is no model that can be deployed in {root}. {hint}")
    if len(found) > 1:
        raise FailedPrecondition(
            f"There are several models in {root}: {_list_names(found)}. Say which one by its path below the "
            "job's folder."
        )
    return found[0]


def _list_names(models: Sequence[str]) -> str:
    """The first of them: a program may leave any number."""
    rest = len(models) - _MAX_NAMES
    return ", ".join((*models[:_MAX_NAMES], *((f"{rest} more",) if rest > 0 else ())))


def plan_version(record: JobRecord, options: DeploymentOptions, model_dir: str) -> PlannedVersion:
    given = record.job.training_input or TrainingInput()
    version = Version(
        name=options.version or record.job.job_id,
        deployment_uri=model_dir,
        runtime_version=given.runtime_version,
        python_version=given.python_version,
        description=f"Trained by the job {record.job.job_id}.",
    )
    return PlannedVersion(ModelName(record.project, options.model), version)
