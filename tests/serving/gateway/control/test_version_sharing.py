"""Room for files that nobody has asked for yet."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from serving.config import ServeConfig
from serving.gateway.control.version_sharing import VersionSharing


@pytest.mark.parametrize(("prefetch_bytes", "has_room"), [(1, True), (0, False), (1 << 62, False)])
def test_files_are_fetched_ahead_while_as_much_of_the_disk_is_free(
    tmp_path: Path, prefetch_bytes: int, has_room: bool
) -> None:
    config = ServeConfig(
        state_dir=tmp_path, shared_versions_uri=str(tmp_path / "shared"), prefetch_bytes=prefetch_bytes
    )

    assert asyncio.run(VersionSharing(config, {}, "database").has_room_ahead()) is has_room
