"""Places, and what reads and writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.artifacts.storage import ArtifactFetcher, FileStore
from tests.emulator import Emulator
from tests.serving.artifacts.storage.artifacts import ROOMY
from tests.serving.artifacts.storage.places import Place, put


@pytest.fixture(params=["disk", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "disk":
        return Place(str(tmp_path / "root"), put)
    emulator: Emulator = request.getfixturevalue("emulator")
    return Place(f"gs://{emulator.bucket()}/root", emulator.put)


@pytest.fixture
def files() -> FileStore:
    return FileStore(retry_seconds=10)


@pytest.fixture
def storage(tmp_path: Path) -> ArtifactFetcher:
    return ArtifactFetcher(tmp_path / "cache", ROOMY, retry_seconds=10)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let pass what the libraries, not ours, warn of."""
    # google-api-core wishes for a package that only gRPC clients use.
    item.add_marker(pytest.mark.filterwarnings("ignore:Please install grpcio-status:ImportWarning"))
    # The storage client drops the responses of failed downloads without closing them.
    item.add_marker(pytest.mark.filterwarnings("ignore:unclosed.*socket:ResourceWarning"))
