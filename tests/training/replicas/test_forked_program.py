from __future__ import annotations

import pytest

from training.replicas.forked_program import find_obstacle


@pytest.mark.parametrize(
    "name",
    [
        "PYTHONHASHSEED",
        "OMP_NUM_THREADS",
        "TF_CPP_MIN_LOG_LEVEL",
        "TF_USE_LEGACY_KERAS",
        "KERAS_HOME",
        "ONEDNN_MAX_CPU_ISA",
    ],
)
def test_a_variable_that_a_library_has_read_already(name: str) -> None:
    """In a fork of a process that has imported TensorFlow, the other Keras would be chosen in vain."""
    assert find_obstacle({"MINE": "1", name: "17"}, ()).startswith(f"{name} is read when")
