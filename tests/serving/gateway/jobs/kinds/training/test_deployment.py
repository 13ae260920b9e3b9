"""Which of the models that a job has made is deployed, and as what."""

from __future__ import annotations

import pytest

from serving.errors import FailedPrecondition, NotFound
from serving.gateway.jobs.kinds.training.deployment import choose_model, plan_version
from serving.gateway.state.records import JobKindName, JobRecord
from serving.names import ModelName
from serving.resources import DeploymentOptions, Job, TrainingInput

MODELS = ("gs://b/out/export/1", "gs://b/out/export/2", "gs://b/out/model")


def test_the_one_model_is_chosen() -> None:
    assert choose_model(MODELS[2:], "gs://b/out/", "") == MODELS[2]
    assert choose_model(MODELS, "gs://b/out", "model") == MODELS[2]
    assert choose_model(MODELS, "gs://b/out", "/export/1/") == MODELS[0]
    assert choose_model(["/o"], "file:///o", "") == "/o"


def test_none_or_several_are_not() -> None:
    """The error says what there is."""
    with pytest.raises(FailedPrecondition, match=r"export/1, gs://b/out/export/2\. Say which one"):
        choose_model(MODELS, "gs://b/out", "export")
    with pytest.raises(NotFound, match=r"no model .* in gs://b/out/mod\. There are gs://b/out/export/1"):
        choose_model(MODELS, "gs://b/out", "mod")
    with pytest.raises(NotFound, match=r"no model .* in gs://b/out$|no model .* in gs://b/out\."):
        choose_model((), "gs://b/out", "")


def test_the_version_of_a_job() -> None:
    """It has the job's id unless it is told another, and its runtime version."""
    job = Job(job_id="census_1", training_input=TrainingInput(runtime_version="2.11"))
    record = JobRecord(
        name="projects/p/jobs/census_1", project="p", uid="u", number=1, kind=JobKindName.TRAINING, job=job,
    )  # fmt: skip

    planned = plan_version(record, DeploymentOptions(model="census"), "gs://b/out/model")
    named = plan_version(record, DeploymentOptions(model="census", version="v1"), "gs://b/out/model")

    assert planned.model == ModelName("p", "census")
    assert (planned.version.name, named.version.name) == ("census_1", "v1")
    assert planned.version.deployment_uri == "gs://b/out/model"
    assert planned.version.runtime_version == "2.11"
