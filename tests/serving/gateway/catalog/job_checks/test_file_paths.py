from __future__ import annotations

import pytest

from serving.gateway.catalog.job_checks.file_paths import find_path_problem


@pytest.mark.parametrize("place", ["gs://b/p", "gs://b", "/a/b", "file:///a/b", "gs://b/a//b", "/a:b"])
def test_a_place(place: str) -> None:
    assert find_path_problem(place) == ""


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("gs://", "names no bucket"),
        ("gs:///p", "names no bucket"),
        ("s3://b/p", "Cannot use s3://"),
        ("b/p", "is neither"),
        ("", "is neither"),
        ("file://b/p", "is neither"),
        ("/a\0b", "NUL character"),
        ("file:///a%00b", "NUL character"),
    ],
)
def test_no_place(place: str, problem: str) -> None:
    assert problem in find_path_problem(place)
