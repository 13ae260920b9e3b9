"""From which pilot the process of a batch prediction is forked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from autoscaler.pools import PilotSpec
from batch.messages import JobRequest
from serving.config import ServeConfig
from serving.gateway.jobs.job_kind import ForkPlan
from serving.gateway.jobs.kinds.prediction.prediction_kind import PredictionKind
from serving.gateway.state.records import DeploymentInfo, JobRecord, VersionRecord
from serving.names import VersionName
from serving.resources import Job, Version, resource_from_json

DEPLOYED = DeploymentInfo(model_dir="/models/v1", framework="TENSORFLOW", pilot="TENSORFLOW")


def make_version(**changes: Any) -> VersionRecord:
    deployed = msgspec.structs.replace(DEPLOYED, **changes)
    version = Version(name="v1", deployment_uri="gs://b/m")
    return VersionRecord(name=VersionName("p", "m", "v1"), uid="v", version=version, deployed=deployed)


def plan(folder: Path, version: VersionRecord | None, **options: Any) -> tuple[ForkPlan | None, bytes]:
    """How a job is forked, and what a process that is started otherwise reads."""
    config = ServeConfig(state_dir=folder / "state")
    environment = {"PATH": "/bin", "SECRET": "s", "STORAGE_EMULATOR_HOST": "http://e"}
    kind = PredictionKind(config, environment, lambda record: PilotSpec(record.uid, (), {}))
    wire = {
        "jobId": "j",
        "predictionInput": {"dataFormat": "JSON", "inputPaths": ["/in"], "outputPath": "/out", "region": "r"},
        "batchOptions": options,
    }
    record = JobRecord(
        name="projects/p/jobs/j", project="p", uid="u", number=1, job=resource_from_json(Job, wire), attempt=1
    )
    attempt = kind.create_attempt(record, version, folder / "job")
    found = kind.plan_fork(attempt)
    if found is not None:
        assert found.launch.environment == kind.environment
    return found, attempt.request


def test_the_pilot_of_the_version(tmp_path: Path) -> None:
    found, request = plan(tmp_path, make_version())

    assert found is not None
    assert found.pilot.key == "v"
    assert msgspec.convert(found.launch.arguments["request"], JobRequest) == msgspec.json.decode(
        request, type=JobRequest
    )


@pytest.mark.parametrize(
    ("version", "options"),
    [
        (None, {}),
        (make_version(interpreter="/usr/bin/python3.8"), {}),
        (make_version(), {"runner": "FlinkRunner"}),
    ],
)
def test_no_pilot(tmp_path: Path, version: VersionRecord | None, options: dict[str, Any]) -> None:
    """For a model by its URI, one that another interpreter computes, and workers elsewhere."""
    assert plan(tmp_path, version, **options)[0] is None
