"""Files of a job that do not exist, and what is like them."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.artifacts.input_check import InputCheck, MissingInput, find_missing_input
from serving.artifacts.local_folder_policy import LocalFolderPolicy


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("input/rows.jsonl", "input/more.jsonl", "secret/rows.jsonl"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.touch()
    (tmp_path / "empty").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("typed", "suggestion", "said"),
    [
        ("imput/rows.jsonl", "input/rows.jsonl", "Do you mean {}/input/rows.jsonl?"),
        ("imput/*", "input/*", "No file matches"),
        ("input/rows.jsnl", "input/rows.jsonl", "There is no file"),
        ("input", "input/*", "is a folder"),
        ("input/", "input/*", "is a folder"),
        ("input/x*", "", "{}/input holds more.jsonl, rows.jsonl."),
        ("empty/*", "", "No file matches"),
        ("input/a*b", "", "not its last character"),
        ("nothing_like_it", "", "{} holds empty, input, secret."),
    ],
)
def test_what_is_missing_is_said_with_what_is_like_it(
    folder: Path, typed: str, suggestion: str, said: str
) -> None:
    pattern = f"{folder}/{typed}"
    found = find_missing_input(InputCheck((f"{folder}/input/*", pattern)))

    assert found.pattern == pattern
    assert found.suggestion == (f"{folder}/{suggestion}" if suggestion else "")
    assert said.format(folder) in found.message


def test_what_is_there_has_no_finding(folder: Path) -> None:
    patterns = (f"{folder}/input/*", f"{folder}/input/mo*", f"file://{folder}/input/rows.jsonl")

    assert find_missing_input(InputCheck(patterns)) == MissingInput()


def test_a_folder_is_no_package(folder: Path) -> None:
    """Where single files are wanted, no pattern is offered."""
    found = find_missing_input(InputCheck((f"{folder}/input",), takes_stars=False))

    assert ("is a folder" in found.message, found.suggestion) == (True, "")


def test_nothing_is_said_of_folders_that_callers_may_not_use(folder: Path) -> None:
    folders = LocalFolderPolicy(allowed=(str(folder / "input"),))
    found = find_missing_input(InputCheck((f"{folder}/secrets/rows.jsonl",), folders))

    assert "local_folders" in found.message
    assert (found.suggestion, "rows.jsonl?" in found.message) == ("", False)


def test_storage_that_does_not_answer_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job tries for longer."""
    monkeypatch.setattr("serving.artifacts.input_check._RETRY_SECONDS", 0.1)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")

    assert find_missing_input(InputCheck(("gs://bucket/in/*",))) == MissingInput()
