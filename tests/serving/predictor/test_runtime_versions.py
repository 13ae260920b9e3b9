"""The table of AI Platform's runtime versions, as it is documented."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path

from serving.predictor.runtime_versions import RUNTIME_VERSIONS, list_runtime_versions_by_xgboost

DOCUMENT = Path(__file__).parents[3] / "docs" / "runtimes.md"


def test_the_documented_table_is_the_one_that_is_built() -> None:
    """Line by line."""
    lines = [line for line in DOCUMENT.read_text().splitlines() if line.startswith(("| 1.", "| 2."))]

    assert lines == [
        f"| {' | '.join((version, *astuple(one)))} |" for version, one in RUNTIME_VERSIONS.items()
    ]


def test_the_newest_runtime_version_with_each_xgboost() -> None:
    """By its minor version."""
    found = list_runtime_versions_by_xgboost()

    assert (found["0.90"], found["1.4"], found["1.6"]) == ("2.1", "2.6", "2.11")
