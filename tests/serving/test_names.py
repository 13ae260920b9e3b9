"""What models, versions and jobs may be called."""

from __future__ import annotations

import pytest

from serving.errors import InvalidArgument
from serving.names import VersionName, check_id, check_job_id, parse_model_or_version_name


@pytest.mark.parametrize("name", ["m", "Iris_2", "sklearn-iris", "v1.0.3", "a..b", "m-", "x" * 128])
def test_names_of_other_servers_are_taken(name: str) -> None:
    """A letter, then letters, digits, `_`, `-` and `.`: whole segments of a path, never "." or ".."."""
    assert check_id(name, "model.name") == name
    assert parse_model_or_version_name(f"projects/p/models/{name}/versions/{name}") == VersionName(
        "p", name, name
    )


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "m.", "-m", "_m", "1st", "a/b", "a:b", "a b", "m\n", "ä", "a%2eb", "a\x00b", "x" * 129],
)
def test_other_names_are_refused(name: str) -> None:
    """AI Platform's other rules hold, and no name ends like a sentence."""
    with pytest.raises(InvalidArgument, match=r"must start with a letter .* '_', '-' and '\.'"):
        check_id(name, "model.name")


@pytest.mark.parametrize("name", ["a-b", "a.b", "1st", "x" * 129])
def test_names_of_jobs_are_those_of_ai_platform(name: str) -> None:
    """Other servers have none."""
    assert check_job_id("monday_2", "job.job_id") == "monday_2"
    with pytest.raises(InvalidArgument, match="letters, numbers and underscores"):
        check_job_id(name, "job.job_id")
