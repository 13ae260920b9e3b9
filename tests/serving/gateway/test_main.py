from __future__ import annotations

import logging
import stat
from pathlib import Path

import pytest

from serving.errors import FailedPrecondition
from serving.gateway.main import _lock_state_dir


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_state_folder_is_the_servers_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As is what it remembers."""
    folder = tmp_path / "new" / "state"
    with _lock_state_dir(folder):
        assert (mode(folder), mode(folder / "state.db")) == (0o700, 0o600)

    assert not caplog.records


def test_a_folder_that_lets_others_in_stays_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With a warning; what the server remembers is closed to them all the same, and kept."""
    (tmp_path / "state.db").write_bytes(b"kept")
    (tmp_path / "state.db").chmod(0o644)
    tmp_path.chmod(0o755)
    with caplog.at_level(logging.WARNING), _lock_state_dir(tmp_path):
        assert (mode(tmp_path), mode(tmp_path / "state.db")) == (0o755, 0o600)

    assert (tmp_path / "state.db").read_bytes() == b"kept"
    assert [record.getMessage() for record in caplog.records] == [
        f"other users may read the state folder {tmp_path}; close it to them: chmod 700"
    ]


def test_a_second_server_is_refused_though_the_lock_was_removed(tmp_path: Path) -> None:
    """They would write over each other's state."""
    with _lock_state_dir(tmp_path):
        for _ in range(2):
            with pytest.raises(FailedPrecondition, match="Another server"), _lock_state_dir(tmp_path):
                pass
            (tmp_path / "lock").unlink()
    with _lock_state_dir(tmp_path):
        pass
