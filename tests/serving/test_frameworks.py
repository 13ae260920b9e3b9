from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving import frameworks
from serving.errors import LoadFailed
from serving.frameworks import Framework, find_by_files, find_by_platform, find_user_code_framework
from serving.gateway.catalog.checks import check_version
from serving.gateway.control.pilot_specs import framework_pilot_spec
from serving.names import VersionName
from serving.resources import Version
from serving.runtimes import LoadSpec, load_model
from serving.runtimes.framework_detection import detect_framework, find_model_file

# A framework with a file of its own, which many other files are called too, and a library that is not here.
RECORD = """
from serving.frameworks import Framework, ModelFile

FRAMEWORK = Framework(
    name="MADE_UP",
    title="made-up",
    platform="made_up",
    load="made_up_runtime.runtime:load_model",
    library="json",
    extra="made-up",
    model_files=(
        ModelFile(
            name="model.made",
            is_extension=True,
            recognize=lambda file: file.read_bytes().startswith(b"made up"),
            suffixes=(".made",),
        ),
    ),
    advice={".raw": "{name} is raw: make it up."},
    pilot="made-up",
    preload=("made_up_runtime.runtime",),
)
"""


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Framework]:
    """A framework that is a folder and a line in the table."""
    folder = tmp_path / "code" / "made_up_runtime"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "framework.py").write_text(RECORD)
    (folder / "runtime.py").write_text("import no_such_library")
    monkeypatch.syspath_prepend(folder.parent)
    monkeypatch.setattr(frameworks, "_FOLDERS", (*frameworks._FOLDERS, "made_up_runtime"))
    frameworks.load_frameworks.cache_clear()
    yield frameworks.load_frameworks()["MADE_UP"]
    frameworks.load_frameworks.cache_clear()
    for module in [name for name in sys.modules if name.startswith("made_up_runtime")]:
        del sys.modules[module]


def write(folder: Path, **files: str) -> Path:
    folder.mkdir()
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ({"saved_model.pb", "notes"}, ["TENSORFLOW"]),
        ({"model.pkl"}, ["SCIKIT_LEARN", "XGBOOST"]),
        ({"model.bst", "model.json"}, ["XGBOOST"]),
        ({"model.json"}, ["XGBOOST"]),
        ({"saved_model.pb", "model.ubj"}, ["TENSORFLOW"]),
        ({"notes"}, []),
    ],
)
def test_names_of_files_tell_the_frameworks_they_may_be_of(names: set[str], found: list[str]) -> None:
    assert [framework.name for framework in find_by_files(names)] == found


def test_schemas_are_of_a_framework_by_their_platform() -> None:
    """Nothing is known of one whose platform no framework has."""
    assert find_by_platform("tensorflow_savedmodel").takes_named_tensors
    assert find_by_platform("xgboost").takes_missing_numbers
    assert find_by_platform("gone") is find_user_code_framework()


def test_names_of_frameworks_are_unique() -> None:
    """On the wire, in settings and in schemas; one of them is for users' code."""
    records = frameworks.load_frameworks().values()

    assert len({one.option for one in records}) == len({one.platform for one in records}) == len(records)
    assert [one.name for one in records if one.runs_user_code] == ["CUSTOM"]
    assert [one.option for one in frameworks.list_selectable()][:2] == ["tensorflow", "scikit-learn"]


def test_a_framework_is_known_by_its_record(made_up: Framework, tmp_path: Path) -> None:
    """Nothing else has to know it: detection, checks of versions, pilots."""
    own = write(tmp_path / "own", model_made="made up")
    notes = write(tmp_path / "notes", model_made="to do", model_pkl="")

    assert detect_framework(own, "") is made_up
    assert find_model_file(own, made_up) == own / "model.made"
    assert detect_framework(notes, "").name == "SCIKIT_LEARN"
    check_version(Version(deployment_uri="/x", framework="MADE_UP"), VersionName("p", "m", "v"))
    spec = framework_pilot_spec("MADE_UP", "", {})
    assert (spec.key, spec.spare_warmup) == ("made-up", "")
    assert "made_up_runtime.runtime" in spec.preload
    assert "serving.runtimes.sklearn_runtime.runtime" not in spec.preload


def test_two_files_are_refused_where_both_are_recognized(made_up: Framework, tmp_path: Path) -> None:
    both = write(tmp_path / "both", model_made="made up", model_json="{}")
    either = write(tmp_path / "either", model_made="to do", model_json="{}")

    with pytest.raises(LoadFailed, match=r"model\.json, model\.made\. Keep exactly one"):
        detect_framework(both, "")
    assert detect_framework(either, "").name == "XGBOOST"


def test_a_file_that_nobody_recognizes_counts_alone(made_up: Framework, tmp_path: Path) -> None:
    """Loading says what is wrong with it, better than that no file was found."""
    assert detect_framework(write(tmp_path / "alone", model_made="to do"), "") is made_up


@pytest.mark.parametrize(
    ("name", "advice"),
    [("best.made", "Rename best.made to model.made."), ("best.raw", "best.raw is raw: make it up.")],
)
def test_a_framework_helps_with_files_that_are_nearly_its_own(
    made_up: Framework, tmp_path: Path, name: str, advice: str
) -> None:
    (tmp_path / "nearly").mkdir()
    (tmp_path / "nearly" / name).touch()

    with pytest.raises(LoadFailed) as caught:
        detect_framework(tmp_path / "nearly", "")
    assert advice in caught.value.detail
    assert "model.made" in caught.value.detail


def test_a_library_that_is_not_installed_is_asked_for(made_up: Framework, tmp_path: Path) -> None:
    """By the extra that brings it."""
    with pytest.raises(
        LoadFailed, match=r"MADE_UP is not installed here .*pip install 'pilotlight\[made-up\]'"
    ):
        load_model(LoadSpec(write(tmp_path / "model", model_made="made up")))


def test_methods_are_refused_by_the_record(made_up: Framework, tmp_path: Path) -> None:
    folder = write(tmp_path / "model", model_made="made up")

    with pytest.raises(
        LoadFailed, match=r"for models of scikit-learn and XGBoost.*; one of MADE_UP has no other"
    ):
        load_model(LoadSpec(folder, method="predict_proba"))


def test_an_unknown_framework_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match="'TORCH'; known: TENSORFLOW, SCIKIT_LEARN, XGBOOST"):
        load_model(LoadSpec(tmp_path, "TORCH"))
