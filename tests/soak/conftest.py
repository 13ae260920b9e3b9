"""The models that the long tests share."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.soak import models


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, models.Model]:
    """A model of each kind."""
    root = tmp_path_factory.mktemp("trained")
    return {kind: models.write(kind, root / kind) for kind in models.KINDS}
