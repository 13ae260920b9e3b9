from __future__ import annotations

import os
from typing import Any

import pytest

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}


@pytest.fixture(scope="session")
def tf() -> Any:
    """TensorFlow, imported by those tests only that need it."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    import tensorflow

    tensorflow.get_logger().setLevel("ERROR")
    return tensorflow
