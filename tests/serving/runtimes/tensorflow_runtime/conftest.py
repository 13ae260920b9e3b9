"""Each SavedModel is built once, and loaded once by each of the two that are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.runtimes import LoadSpec
from tests.serving.runtimes.tensorflow_runtime import saved_models
from tests.serving.runtimes.tensorflow_runtime.saved_models import Arrays


@pytest.fixture(scope="session")
def models(tf: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a model by the name of its builder; each is built once."""
    root = tmp_path_factory.mktemp("models")

    def model(name: str) -> Path:
        folder = root / name
        if not folder.exists():
            getattr(saved_models, f"build_{name}")(tf, folder)
        return folder

    return model


@pytest.fixture(scope="session")
def load(tf: Any, models: Callable[[str], Path]) -> Callable[[str | Path], Any]:
    """The runtime of a model, by its builder's name (loaded once) or its folder."""
    from serving.runtimes.tensorflow_runtime import runtime

    known: dict[str, Any] = {}

    def load(model: str | Path) -> Any:
        if isinstance(model, Path):
            return runtime.load_model(LoadSpec(model))
        return known.setdefault(model, known.get(model) or runtime.load_model(LoadSpec(models(model))))

    return load


@pytest.fixture(scope="session")
def reference(tf: Any, models: Callable[[str], Path]) -> Callable[..., Arrays]:
    """What the signature call answers."""
    loaded: dict[str, Any] = {}

    def call(model: str, instances: Mapping[str, Any], signature: str = "serving_default") -> Arrays:
        known = loaded.setdefault(model, loaded.get(model) or tf.saved_model.load(str(models(model))))
        tensors = {alias: tf.constant(value) for alias, value in instances.items()}
        return {alias: np.asarray(v) for alias, v in known.signatures[signature](**tensors).items()}

    return call
