from __future__ import annotations

import bz2
import copyreg
import gzip
import lzma
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import xgboost as xgb
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from serving.errors import LoadFailed
from serving.frameworks import find_by_files, load_frameworks
from serving.runtimes.framework_detection import (
    detect_framework,
    find_model_file,
    read_decompressed,
    read_first_class,
)

X = np.array([[0.0], [1.0], [2.0]])


def fill(folder: Path, *names: str) -> Path:
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x")
    return folder


@pytest.mark.parametrize(
    ("files", "framework"),
    [
        (["saved_model.pb", "variables/variables.index"], "TENSORFLOW"),
        (["saved_model.pbtxt"], "TENSORFLOW"),
        (["model.bst"], "XGBOOST"),
        (["model.json"], "XGBOOST"),
        (["model.ubj"], "XGBOOST"),
        (["model.joblib"], "SCIKIT_LEARN"),
        (["model.pkl", "model.json", "notes.txt"], "SCIKIT_LEARN"),
        (["saved_model.pb", "model.ubj"], "TENSORFLOW"),
    ],
)
def test_the_file_tells_the_framework(files: list[str], framework: str, tmp_path: Path) -> None:
    """The exact file name decides; our own additions only count where no file of the contract is."""
    assert detect_framework(fill(tmp_path, *files), "").name == framework


def test_the_content_of_a_shared_name_tells_the_framework(tmp_path: Path) -> None:
    """KServe and MLServer call LightGBM's text model.bst; by the name alone that is XGBoost's."""
    (tmp_path / "model.bst").write_text("tree\nversion=v3\n")
    framework = detect_framework(tmp_path, "")

    assert framework.name == "LIGHTGBM"
    assert find_model_file(tmp_path, framework).name == "model.bst"
    assert [one.name for one in find_by_files({"model.bst"})] == ["XGBOOST"]


def test_a_prediction_class_makes_it_custom(tmp_path: Path) -> None:
    """With predictionClass the files are the routine's own business."""
    assert detect_framework(fill(tmp_path, "saved_model.pb", "model.pkl"), "module.Class").name == "CUSTOM"


@pytest.mark.parametrize(
    "files",
    [["saved_model.pb", "model.bst"], ["model.joblib", "model.pkl"], ["model.json", "model.ubj"]],
)
def test_several_model_files_are_refused(files: list[str], tmp_path: Path) -> None:
    """Two model files in one folder are an error that names them."""
    with pytest.raises(LoadFailed) as caught:
        detect_framework(fill(tmp_path, *files), "")

    assert caught.value.detail == (
        f"Multiple model files are found in the model_path: {', '.join(files)}. Keep exactly one."
    )


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "and it is empty."),
        (
            ["notes.txt", "export/run/7/saved_model.pb", "export/run/7/variables/x"],
            "found export/, notes.txt. export/run/7/ holds saved_model.pb: deploy that folder.",
        ),
        (["too/deep/for/this/model.pkl"], "found too/. With a custom prediction routine"),
        (["1/saved_model.pb"], "found 1/. 1/ holds saved_model.pb: deploy that folder."),
        (["model.h5"], "model.h5 is a Keras file: write a SavedModel"),
        (["model.keras"], "model.keras is a Keras file"),
        (["lr.pkl"], "Rename lr.pkl to model.pkl."),
        (["lr.pickle"], "Rename lr.pickle to model.pkl."),
        (["Model.joblib"], "Rename Model.joblib to model.joblib."),
        (["best.bst"], "Rename best.bst to model.bst."),
        (["0010.model"], "Rename 0010.model to model.bst."),
        (
            ["a", "b", "c", "d", "e", "f", "g"],
            "found a, b, c, d, e and 2 more. With a custom prediction routine",
        ),
    ],
)
def test_no_model_file_says_what_is_there(files: list[str], message: str, tmp_path: Path) -> None:
    """The error lists the names looked for, the files found, and the nearest way out."""
    with pytest.raises(LoadFailed) as caught:
        detect_framework(fill(tmp_path, *files), "")

    assert message in caught.value.detail
    assert (
        "Looked for saved_model.pb, saved_model.pbtxt, model.joblib, model.pkl, model.bst"
        in caught.value.detail
    )


def test_a_file_of_another_name_is_told_by_its_content(tmp_path: Path) -> None:
    """The first is what LightGBM's program calls its models."""
    (tmp_path / "LightGBM_model.txt").write_text("tree\nversion=v4\n")
    (tmp_path / "README.txt").write_text("Trained on Monday.\n")
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")

    with pytest.raises(LoadFailed, match=r"Rename LightGBM_model\.txt to model\.txt\."):
        detect_framework(tmp_path, "")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    """A folder that is not there is not the same as an empty one."""
    with pytest.raises(LoadFailed, match="'gone' does not exist"):
        detect_framework(tmp_path / "gone", "")


@pytest.mark.parametrize(
    ("framework", "files", "found"),
    [
        ("SCIKIT_LEARN", ["model.pkl", "model.joblib"], "model.joblib"),
        ("XGBOOST", ["model.json", "model.bst"], "model.bst"),
        ("XGBOOST", ["model.bst", "model.pkl"], "model.pkl"),
        ("TENSORFLOW", ["saved_model.pbtxt", "model.pkl"], "saved_model.pbtxt"),
    ],
)
def test_a_runtime_finds_its_file(framework: str, files: list[str], found: str, tmp_path: Path) -> None:
    """With the framework given, its own files are tried in the contract's order."""
    assert find_model_file(fill(tmp_path, *files), load_frameworks()[framework]).name == found


@pytest.mark.parametrize(
    ("framework", "file", "actual"),
    [
        ("SCIKIT_LEARN", "saved_model.pb", "TENSORFLOW"),
        ("XGBOOST", "saved_model.pb", "TENSORFLOW"),
        ("TENSORFLOW", "model.pkl", "SCIKIT_LEARN"),
        ("SCIKIT_LEARN", "model.bst", "XGBOOST"),
    ],
)
def test_a_file_of_another_framework_is_named(framework: str, file: str, actual: str, tmp_path: Path) -> None:
    """The framework said and the file found disagree: the error names both and the way out."""
    with pytest.raises(LoadFailed) as caught:
        find_model_file(fill(tmp_path, file), load_frameworks()[framework])

    assert f"The framework is {framework}, but the folder holds {file}" in caught.value.detail
    assert f"Set the framework to {actual}" in caught.value.detail


def test_a_runtime_without_any_file_says_what_it_wants(tmp_path: Path) -> None:
    """Only the names this framework takes are listed."""
    with pytest.raises(
        LoadFailed, match=r"Looked for model\.joblib or model\.pkl directly in the folder; found x"
    ):
        find_model_file(fill(tmp_path, "x"), load_frameworks()["SCIKIT_LEARN"])


MODELS: dict[str, tuple[Callable[[], Any], str]] = {
    "linear": (lambda: LinearRegression().fit(X, [0, 1, 2]), "SCIKIT_LEARN"),
    "pipeline": (lambda: make_pipeline(StandardScaler(), xgb.XGBRegressor()), "SCIKIT_LEARN"),
    "classifier": (lambda: xgb.XGBClassifier(n_estimators=2).fit(X, [0, 1, 0]), "XGBOOST"),
    "booster": (lambda: xgb.train({}, xgb.DMatrix(X, label=[0, 1, 2]), 2), "XGBOOST"),
}


@pytest.mark.parametrize("compression", [0, 3, ("gzip", 3), ("bz2", 3), ("lzma", 3), ("xz", 3)])
@pytest.mark.parametrize("kind", MODELS)
def test_a_pickle_tells_by_its_first_class(kind: str, compression: Any, tmp_path: Path) -> None:
    """scikit-learn and XGBoost are told apart without loading, however joblib compressed the file."""
    make, framework = MODELS[kind]
    joblib.dump(make(), tmp_path / "model.joblib", compress=compression)

    assert detect_framework(tmp_path, "").name == framework


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("kind", MODELS)
def test_every_pickle_protocol_is_understood(kind: str, protocol: int, tmp_path: Path) -> None:
    """Old protocols name helpers before the class; they are passed over."""
    make, framework = MODELS[kind]
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(make(), protocol))

    assert detect_framework(tmp_path, "").name == framework


class Trap:
    """Does something when unpickled."""

    def __reduce__(self) -> Any:
        return pytest.fail, ("the pickle was run",)


def test_looking_into_a_pickle_runs_nothing(tmp_path: Path) -> None:
    """Detection calls nothing the file names, not even builtins."""
    for value in (Trap(), [Trap()], eval):
        (tmp_path / "model.pkl").write_bytes(pickle.dumps(value))
        assert detect_framework(tmp_path, "").name == "SCIKIT_LEARN"
    evil = b"cbuiltins\neval\n(S'1/0'\ntR."
    (tmp_path / "model.pkl").write_bytes(evil)
    assert detect_framework(tmp_path, "").name == "SCIKIT_LEARN"
    assert copyreg.dispatch_table is not None


@given(st.binary(max_size=300))
def test_any_bytes_can_be_looked_into(data: bytes) -> None:
    """Bytes that are no pickle tell nothing, and break nothing."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.pkl"
        for wrapped in (
            data,
            b"\x80\x04" + data,
            b"x" + data,
            b"\x1f\x8b" + data,
            b"\x04\x22\x4d\x18" + data,
        ):
            file.write_bytes(wrapped)
            assert isinstance(read_first_class(file), str)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress, zlib.compress])
def test_content_unpacks_what_is_asked_for(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    """The first bytes or all of them, whatever the compression."""
    data = bytes(range(256)) * 1000
    (tmp_path / "file").write_bytes(pack(b"\x80" + data))

    assert read_decompressed(tmp_path / "file") == b"\x80" + data
    assert read_decompressed(tmp_path / "file", 300)[:200] == b"\x80" + data[:199]
