"""The rules of studies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from serving.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted
from serving.gateway.catalog import studies
from serving.gateway.state.records import JobRecord
from serving.names import StudyName
from serving.resources import Job, JobState
from tests.serving.gateway.catalog.study_world import NAME, StudyWorld


def test_a_study_has_a_uid_of_its_own() -> None:
    """Also the next one of its name: its suggestions are others."""
    world = StudyWorld()
    first = world.snapshot.record
    world.do(studies.delete_study, NAME)
    world.do(studies.create_study, NAME, first.study, most=1)

    assert first.study.uid
    assert world.snapshot.record.study.uid not in (first.study.uid, "")
    assert (world.snapshot.record.state, world.snapshot.trial_count) == ("ACTIVE", 0)


def test_a_name_is_taken_once() -> None:
    """In each location."""
    world = StudyWorld()

    with pytest.raises(AlreadyExists) as caught:
        world.do(studies.create_study, NAME, world.snapshot.record.study, most=0)
    assert caught.value.field == "study.name"
    world.do(studies.create_study, replace(NAME, location="there"), world.snapshot.record.study, most=0)


@pytest.mark.parametrize("study", ["", "-a", "a.", "a b", "ü", "a" * 129])
def test_an_id_that_cannot_be_is_refused(study: str) -> None:
    world = StudyWorld()

    with pytest.raises(InvalidArgument) as caught:
        world.do(studies.create_study, replace(NAME, study=study), world.snapshot.record.study, most=0)
    assert caught.value.field == "study_id"


def test_a_project_has_so_many_studies() -> None:
    """Of all locations together."""
    world = StudyWorld()
    other = StudyName("p", "there", "t")

    with pytest.raises(ResourceExhausted, match="max_studies_per_project = 1"):
        world.do(studies.create_study, other, world.snapshot.record.study, most=1)
    world.do(studies.create_study, replace(other, project="q"), world.snapshot.record.study, most=1)


def test_a_location_lists_its_own() -> None:
    world = StudyWorld()
    for name in (replace(NAME, study="a"), replace(NAME, location="there"), replace(NAME, project="q")):
        world.do(studies.create_study, name, world.snapshot.record.study, most=0)

    listed = studies.list_studies(world.state, "p", "here")

    assert [snapshot.record.name.study for snapshot in listed] == ["a", "s"]


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.RUNNING, JobState.SUCCEEDED])
def test_the_study_of_a_job_stays_as_long_as_the_job(state: JobState) -> None:
    world = StudyWorld(job="projects/p/jobs/s")
    job = JobRecord(
        name="projects/p/jobs/s", project="p", uid="1", number=1, job=Job(job_id="s", state=state)
    )
    world.do(lambda draft, _: draft.put(job))

    with pytest.raises(FailedPrecondition, match="is deleted with the job"):
        world.do(studies.delete_study, NAME)
    world.do(lambda draft, _: draft.delete(job))
    world.do(studies.delete_study, NAME)
    with pytest.raises(NotFound):
        studies.get_study(world.state, NAME)


def test_with_a_forgotten_job_goes_its_study() -> None:
    """No other of its id."""
    world = StudyWorld(job="projects/p/jobs/s")
    other = replace(NAME, location="there")
    world.do(studies.create_study, other, world.snapshot.record.study, most=0)
    job = JobRecord(name="projects/p/jobs/s", project="p", uid="1", number=1, job=Job(job_id="s"))

    world.do(lambda draft, _: studies.delete_study_of_job(draft, job))

    assert list(world.state.studies) == [other]
