"""A tiny ONNX model, for the warm-up of spare nodes."""

from __future__ import annotations

import base64
from pathlib import Path

# y = x · [0.5, -1]: float rows of two numbers to rows of one. Writing it anew takes the package onnx, which
# nodes do not need.
_MODEL = (
    "CAc6YAoRCgF4CgF3EgF5IgZNYXRNdWwSBHRpbnkqEwgCCAEQASIIAAAAPwAAgL9CAXdaFwoBeBISChAIARIMCgYSBHJvd3MKAggCYhcKAXkS"
    "EgoQCAESDAoGEgRyb3dzCgIIAUIECgAQDQ=="
)


def write_tiny_model(folder: Path) -> None:
    """Write it to a folder. Raises OSError."""
    (folder / "model.onnx").write_bytes(base64.b64decode(_MODEL))
