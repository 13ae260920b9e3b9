"""What several tests of batch need."""

from __future__ import annotations

import os
from typing import Any

import pytest


@pytest.fixture(scope="session")
def tf() -> Any:
    """TensorFlow, imported when the first test asks for it."""
    for name, value in {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}.items():
        os.environ.setdefault(name, value)
    import tensorflow

    tensorflow.get_logger().setLevel("ERROR")
    return tensorflow
