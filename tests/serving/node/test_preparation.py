"""serving.node.preparation; tests/end_to_end/test_acceleration.py prepares real models."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.node.preparation import find_obstacle
from serving.runtimes import ExternalInterpreter, LoadSpec


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (LoadSpec(Path(), external=ExternalInterpreter("/usr/bin/python3")), "Another interpreter"),
        (LoadSpec(Path(), "CUSTOM", prediction_class="a.B"), "User code"),
        (LoadSpec(Path(), "SCIKIT_LEARN", packages=(Path("x"),)), "User code"),
        (LoadSpec(Path(), "SCIKIT_LEARN", method="predict_proba"), "Only predict"),
        (LoadSpec(Path(), "TENSORFLOW"), "There is no acceleration"),
    ],
)
def test_what_is_not_accelerated_needs_no_preparation(source: LoadSpec, words: str) -> None:
    assert find_obstacle(source).startswith(words)
