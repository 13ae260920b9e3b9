"""autoscaler.pools.node_socket"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pytest

from autoscaler.pools.node_socket import remove_stale_folders


def test_folders_of_killed_servers_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    stale, fresh = tmp_path / "pilotlight-socket-stale", tmp_path / "pilotlight-socket-fresh"
    for folder in (stale, fresh):
        folder.mkdir()
    (stale / "s").touch()
    precious = tmp_path / "precious"
    precious.mkdir()
    (tmp_path / "pilotlight-socket-link").symlink_to(precious)
    an_hour_ago = time.time() - 3600
    for path in (stale, precious):
        os.utime(path, (an_hour_ago, an_hour_ago))
    os.utime(tmp_path / "pilotlight-socket-link", (an_hour_ago, an_hour_ago), follow_symlinks=False)

    remove_stale_folders()

    assert not stale.exists()
    assert fresh.exists()
    assert precious.exists()
