"""Folders for temporary files, and what becomes of them when their process is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from serving.scratch_folders import make_scratch_folder, remove_folder, scratch_folder, sweep_scratch

_OWNER = """
import sys, tempfile
from serving.scratch_folders import make_scratch_folder
tempfile.tempdir = sys.argv[1]
folder = make_scratch_folder("other")
(folder / "model").write_text("large")
print(folder, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go."""
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


@contextmanager
def owner(place: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process with a folder; it is killed in the end."""
    command = [sys.executable, "-c", _OWNER, str(place)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, Path(process.stdout.readline().strip() if process.stdout else "")
        finally:
            process.kill()


def test_a_folder_goes_with_its_block(place: Path) -> None:
    """And everything in it."""
    with scratch_folder("test") as folder:
        (folder / "file").write_text("text")
        assert (folder.parent, folder.stat().st_mode & 0o777) == (place, 0o700)
    assert list(place.iterdir()) == []


def test_a_folder_is_swept_once_its_process_is_gone(place: Path) -> None:
    """However that ended; one that is in use stays, that of this process too."""
    with owner(place) as (process, folder), scratch_folder("test") as ours:
        sweep_scratch()
        assert (folder / "model").exists()
        assert ours.exists()

        process.kill()
        process.wait()
        sweep_scratch()
        assert list(place.iterdir()) == [ours]


def test_a_folder_stays_as_long_as_its_process(place: Path) -> None:
    """Where no block ends it."""
    folder = make_scratch_folder("test")
    sweep_scratch()
    assert list(place.iterdir()) == [folder]


def test_nothing_of_others_is_swept(place: Path, tmp_path: Path) -> None:
    """Neither files, nor what a link leads to, nor folders with other names."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("text")
    (place / "pilotlight-scratch-link").symlink_to(precious)
    (place / "pilotlight-scratch-file").write_text("text")
    (place / "pilotlight-other").mkdir()
    before = sorted(place.iterdir())

    sweep_scratch()

    assert sorted(place.iterdir()) == before
    assert (precious / "file").exists()


def test_folders_of_another_user_are_not_swept(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where the rights of this one would allow it."""
    (place / "pilotlight-scratch-theirs").mkdir()
    monkeypatch.setattr("os.geteuid", lambda: -1)
    sweep_scratch()
    assert len(list(place.iterdir())) == 1


def test_a_place_that_is_gone_is_swept_without_complaint(place: Path) -> None:
    """A cleaner may have been there before."""
    place.rmdir()
    sweep_scratch()


def test_a_folder_of_any_depth_is_removed(tmp_path: Path) -> None:
    """What links in it lead to stays."""
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "folder"
    elsewhere.mkdir()
    folder.mkdir()
    level = os.open(folder, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=level)
        os.symlink(elsewhere, "link", dir_fd=level)
        inner = os.open("d", os.O_RDONLY, dir_fd=level)
        os.close(level)
        level = inner
    os.close(level)

    remove_folder(folder)

    assert not folder.exists()
    assert elsewhere.exists()
