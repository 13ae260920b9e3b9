from __future__ import annotations

from pathlib import Path

from serving.runtimes.folder_check import FolderCheckRequest, check_folder


def test_a_model_is_found(tmp_path: Path) -> None:
    (tmp_path / "model.joblib").write_bytes(b"x")
    found = check_folder(FolderCheckRequest(str(tmp_path)))
    assert (found.framework, found.file, found.message) == ("SCIKIT_LEARN", "model.joblib", "")
    with_class = FolderCheckRequest(str(tmp_path), prediction_class="a.B")
    assert (check_folder(with_class).framework, check_folder(with_class).file) == ("CUSTOM", "")


def test_a_folder_that_is_not_there_is_said_with_what_is_beside_it(tmp_path: Path) -> None:
    (tmp_path / "flowers").mkdir()
    (tmp_path / "notes.txt").write_bytes(b"x")
    for prediction_class in ("", "a.B"):
        missing = FolderCheckRequest(str(tmp_path / "irises"), "", prediction_class, may_look_above=True)
        assert check_folder(missing).message == (
            f"{tmp_path}/irises is no folder. There is nothing at that path on the server's machine; "
            f"{tmp_path} holds flowers/, notes.txt."
        )
        mistyped = FolderCheckRequest(str(tmp_path / "flower"), "", prediction_class, may_look_above=True)
        assert check_folder(mistyped).message == (
            f"{tmp_path}/flower is no folder. There is nothing at that path on the server's machine. "
            f"Do you mean {tmp_path}/flowers?"
        )
    file = FolderCheckRequest(str(tmp_path / "notes.txt"))
    assert check_folder(file).message == f"{tmp_path}/notes.txt is no folder. It is a file."


def test_an_empty_folder_is_said_where_any_file_will_do(tmp_path: Path) -> None:
    request = FolderCheckRequest(str(tmp_path), prediction_class="a.B")
    assert check_folder(request).message.startswith(f"The folder {tmp_path} is empty.")
    (tmp_path / "notes.txt").write_bytes(b"x")
    assert check_folder(request).framework == "CUSTOM"


def test_a_model_near_the_folder_is_named(tmp_path: Path) -> None:
    inner = tmp_path / "variables"
    inner.mkdir()
    (tmp_path / "saved_model.pb").write_bytes(b"x")
    (inner / "variables.index").write_bytes(b"x")
    found = check_folder(FolderCheckRequest(str(inner), may_look_above=True)).message
    assert found.startswith(f"Looked in {inner}. No model file was found. Looked for saved_model.pb")
    assert "found variables.index." in found
    assert found.endswith(f"The folder above, {tmp_path}, holds saved_model.pb: deploy that one.")
    assert "Error code" not in found
    assert check_folder(FolderCheckRequest(str(inner), may_look_above=True)).suggestion == str(tmp_path)
    (tmp_path / "saved_model.pb").rename(inner / "saved_model.pb")
    below = check_folder(FolderCheckRequest(str(tmp_path)))
    assert below.message.endswith("variables/ holds saved_model.pb: deploy that folder.")
    assert below.suggestion == str(inner)


def test_nothing_is_said_of_a_folder_above_that_is_closed(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "saved_model.pb").write_bytes(b"x")
    for folder in ("model", "missing"):
        assert "saved_model.pb: " not in check_folder(FolderCheckRequest(str(tmp_path / folder))).message
        assert f"{tmp_path} holds" not in check_folder(FolderCheckRequest(str(tmp_path / folder))).message
