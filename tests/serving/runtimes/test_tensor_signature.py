"""What the signatures of TensorFlow and ONNX models have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from serving.runtimes.tensor_signature import SignatureTensor, TensorSignature

FLOAT = np.dtype(np.float32)


class Identity(TensorSignature):
    """Answers what it is asked."""

    def compute_outputs(self, values: list[Any]) -> Iterable[tuple[str, Any, np.dtype[Any]]]:
        yield "y", values[0], FLOAT


@pytest.mark.parametrize("width", [1 << 40, 1 << 62])
def test_no_instance_beyond_all_memory_is_made_up(width: int) -> None:
    def make(width: int) -> Any:
        x, y = (SignatureTensor(name, name, FLOAT, (None, width), dense=True) for name in ("x", "y"))
        return Identity("The model", (x,), (y,)).make_synthetic_rows(2)

    assert make(width) is None
    assert make(3)["x"].shape == (2, 3)
