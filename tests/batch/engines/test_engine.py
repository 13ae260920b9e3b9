"""What pipelines are called on an engine."""

from __future__ import annotations

from batch.engines.engine import PipelineName


def test_each_job_has_a_name_of_its_own() -> None:
    """Jobs of two projects may be called alike; attempts have their number."""
    name = PipelineName.of_job("projects/p/jobs/My_Job", "AB12")

    assert name.format_attempt(1) == "pilotlight-my-job-ab12"
    assert name.format_attempt(3) == "pilotlight-my-job-ab12-3"
    assert PipelineName.of_job("local_ab12", "ab12").format_attempt(1) == "pilotlight-local-ab12"


def test_names_of_attempts_are_known_again() -> None:
    """And nobody else's."""
    name = PipelineName.of_job("projects/p/jobs/x", "u1")

    assert all(map(name.matches, ("pilotlight-x-u1", "pilotlight-x-u1-2", "pilotlight-x-u1-31")))
    assert not any(map(name.matches, ("pilotlight-x", "pilotlight-x-u12", "pilotlight-x-u1-b")))
