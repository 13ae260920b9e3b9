"""Which interpreter a runtime version has: the setting, the file, and what is wrong with either."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from serving.config import ServeConfig, load_config
from serving.errors import InvalidArgument
from serving.predictor import interpreters
from serving.predictor.interpreters import InterpreterRegistry


def test_a_list_may_be_typed_one_by_one_or_with_commas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the command line, in the environment and in a file."""
    file = tmp_path / "settings.yaml"
    assert load_config(ServeConfig, {}).runtime == ()
    assert load_config(ServeConfig, {"runtime": ["1.15=/a", "2.1=/b, 2.2=/c,"]}).runtime == (
        "1.15=/a",
        "2.1=/b",
        "2.2=/c",
    )

    file.write_text("runtime: [1.15=/a, 2.10=/b]")
    assert load_config(ServeConfig, {}, file).runtime == ("1.15=/a", "2.10=/b")
    file.write_text("runtime: 1.15=/a, 2.10=/b")
    assert load_config(ServeConfig, {}, file).runtime == ("1.15=/a", "2.10=/b")

    monkeypatch.setenv("PILOTLIGHT_RUNTIME", "1.15=/a,2.1=/b")
    assert load_config(ServeConfig, {}).runtime == ("1.15=/a", "2.1=/b")

    monkeypatch.undo()
    file.write_text("runtime: {1.15: /a}")
    with pytest.raises(InvalidArgument, match="runtime must be a text or a list of texts"):
        load_config(ServeConfig, {}, file)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("1.15", "must be VERSION=PYTHON"),
        ("1.15=", "must be VERSION=PYTHON"),
        ("old=/bin/true", "'old' is no runtime version"),
        ("1.15=/nowhere/python", "There is no interpreter /nowhere/python"),
    ],
)
def test_what_is_wrong_with_the_setting_is_said(entry: str, reason: str) -> None:
    """With the setting and what it has."""
    with pytest.raises(InvalidArgument) as failed:
        interpreters.parse_interpreters((entry,))

    assert "setting runtime" in failed.value.message
    assert entry in failed.value.message
    assert reason in failed.value.message


def test_the_setting_wins_over_the_file_which_is_read_again(tmp_path: Path) -> None:
    """A running server notices what `pilotlight runtimes` writes."""
    file = tmp_path / interpreters.INTERPRETERS_FILE
    known = InterpreterRegistry({"1.15": "/setting"}, tmp_path)
    assert known.find_interpreter("2.1") == ""
    assert known.find_interpreter("") == ""

    interpreters.write_interpreters(file, {"1.15": "/file", "2.1": "/file"})
    assert known.list_paths() == {"1.15": "/setting", "2.1": "/file"}

    interpreters.write_interpreters(file, {"2.1": "/other"})
    assert known.find_interpreter("2.1") == "/other"

    file.write_text("{")
    with pytest.raises(InvalidArgument, match=interpreters.INTERPRETERS_FILE):
        known.list_paths()


def test_an_environment_may_be_named_by_its_folder() -> None:
    """Its path is not resolved: an interpreter finds its environment by it."""
    assert interpreters.resolve_interpreter_path(sys.prefix) == str(Path(sys.prefix, "bin", "python"))
