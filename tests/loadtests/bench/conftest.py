"""The models and bodies of the one workload that takes no time to make."""

from __future__ import annotations

import pytest

from loadtests.bench.models import main
from loadtests.bench.workloads import WORKLOADS, BenchFiles

IRIS = WORKLOADS["W1"]


@pytest.fixture(scope="session")
def material(tmp_path_factory: pytest.TempPathFactory) -> BenchFiles:
    """Files of the logistic regression."""
    found = BenchFiles(tmp_path_factory.mktemp("bench"))
    main(IRIS.model, found.folder)
    return found
