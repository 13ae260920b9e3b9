"""Packages that cannot be installed: the message says which, what is wrong and what to do."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from serving.artifacts import archive_check, package_cache
from serving.errors import LoadFailed
from tests.end_to_end.models import wheel
from tests.serving.artifacts.broken_archives import DAMAGED, SETUP, UNBUILDABLE, Build, setup_py, tar


@pytest.fixture(autouse=True)
def no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """No package index is in reach."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)


def fail_to_install(archives: Sequence[Path], work: Path, timeout: float = 60.0) -> str:
    """What the owner of the archives is told."""
    work.mkdir()
    with pytest.raises(LoadFailed) as failed:
        package_cache.build_entry(archives, work, "", timeout, "")
    return failed.value.detail


def check_message(message: str, archive: Path, words: str) -> None:
    assert message.startswith(f"User-provided package {archive.name} failed to install: ")
    assert words in message
    assert "Traceback" not in message
    assert str(archive.parent) not in message
    assert len(message.splitlines()) < 10


@pytest.mark.parametrize(("build", "words"), DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_archive(tmp_path: Path, build: Build, words: str) -> None:
    archive = build(tmp_path)

    check_message(fail_to_install([archive], tmp_path / "work"), archive, words)


@pytest.mark.parametrize(("build", "words"), UNBUILDABLE.values(), ids=UNBUILDABLE.keys())
def test_an_archive_that_cannot_be_built(tmp_path: Path, build: Build, words: str) -> None:
    archive = build(tmp_path)

    check_message(fail_to_install([archive], tmp_path / "work"), archive, words)


def test_a_build_that_hangs(tmp_path: Path) -> None:
    """It is ended, and the setting is named."""
    archive = setup_py("**__import__('time').sleep(20)")(tmp_path)
    began = time.monotonic()

    message = fail_to_install([archive], tmp_path / "work", timeout=2)

    check_message(message, archive, "it was not done after 2 s, and was ended (setting build_timeout).")
    assert time.monotonic() - began < 15


def test_two_archives_of_one_package(tmp_path: Path) -> None:
    archives = [wheel(tmp_path, name, "1.0", {"user.py": ""}) for name in ("my_user", "My.User")]

    message = fail_to_install(archives, tmp_path / "work")

    assert message == (
        "User-provided package my_user-1.0-py3-none-any.whl, My.User-1.0-py3-none-any.whl failed to install: "
        "both hold the package My.User (here 1.0). Leave one of them out."
    )


def test_too_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_check, "_MAX_FILES", 3)
    archive = tar({**SETUP, **{f"user-0.1/{number}": "" for number in range(3)}})(tmp_path)

    check_message(
        fail_to_install([archive], tmp_path / "work"), archive, "more than 3 files. Leave data out of it."
    )


def test_unusual_names_are_taken(tmp_path: Path) -> None:
    """Of archives, and of files that are no modules."""
    archive = setup_py("packages=['user']", {"user/__init__.py": "", "user/\N{SNOWMAN}.txt": ""})(tmp_path)
    archive = archive.rename(tmp_path / "päckchen [x] (1).tar.gz")
    (tmp_path / "work").mkdir()

    package_cache.build_entry([archive], tmp_path / "work", "", 60.0, "")

    assert (tmp_path / "work/packages/user/__init__.py").is_file()
