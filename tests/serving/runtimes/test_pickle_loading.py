from __future__ import annotations

import functools
import io
import json
import pickle
import pickletools
import sys
import textwrap
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import sklearn
from hypothesis import given
from hypothesis import strategies as st
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from serving.errors import LoadFailed
from serving.runtimes import pickle_loading
from serving.runtimes.pickle_loading import load_pickle, root_package, walk_parts

X = np.arange(6.0).reshape(3, 2)
Y = np.array([0.0, 1.0, 5.0])


@pytest.fixture(autouse=True)
def own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has its own sys.path, which loading appends to."""
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture
def module() -> Iterator[types.ModuleType]:
    """A module that exists only while a model is saved."""
    made = types.ModuleType("training_code")
    exec(textwrap.dedent("class Scale:\n    factor = 2\n"), made.__dict__)
    sys.modules["training_code"] = made
    yield made
    sys.modules.pop("training_code", None)


def written(folder: Path, data: bytes, name: str = "model.pkl") -> Path:
    (folder / name).write_bytes(data)
    return folder / name


def reason(file: Path, **options: Any) -> str:
    with pytest.raises(LoadFailed) as caught:
        load_pickle(file, **options)
    return caught.value.detail


@pytest.mark.parametrize("compression", [0, 3, ("gzip", 3), ("bz2", 3), ("lzma", 3), ("xz", 3)])
@pytest.mark.parametrize("name", ["model.joblib", "model.pkl"])
def test_joblib_files_are_read_under_either_name(name: str, compression: Any, tmp_path: Path) -> None:
    """What joblib wrote is read whatever its name and compression."""
    model = LinearRegression().fit(X, Y)
    joblib.dump(model, tmp_path / name, compress=compression)

    loaded = load_pickle(tmp_path / name)

    assert loaded.model.predict(X).tobytes() == model.predict(X).tobytes()
    assert loaded.warnings == ()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("name", ["model.joblib", "model.pkl"])
def test_pickles_are_read_under_either_name(name: str, protocol: int, tmp_path: Path) -> None:
    """What pickle wrote is read whatever its name and protocol."""
    model = LinearRegression().fit(X, Y)

    loaded = load_pickle(written(tmp_path, pickle.dumps(model, protocol), name))

    assert loaded.model.predict(X).tobytes() == model.predict(X).tobytes()


def test_classes_come_from_the_packages(module: Any, tmp_path: Path) -> None:
    """A class of the user's package is found in its folder."""
    file = written(tmp_path, pickle.dumps(module.Scale()))
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "training_code.py").write_text("class Scale:\n    factor = 3\n")
    del sys.modules["training_code"]

    assert load_pickle(file, [tmp_path / "packages"]).model.factor == 3


def test_a_missing_module_is_named(module: Any, tmp_path: Path) -> None:
    """A module that is nowhere is to be packaged."""
    file = written(tmp_path, pickle.dumps(module.Scale()))
    del sys.modules["training_code"]

    assert reason(file) == (
        "model.pkl: it needs module training_code, which is not installed here. "
        "Package it and name the archive in packageUris."
    )


def test_a_missing_class_is_named(module: Any, tmp_path: Path) -> None:
    """A package of another version than the one the model was saved with."""
    file = written(tmp_path, pickle.dumps(module.Scale()))
    del module.Scale

    assert "it needs Scale of module training_code, but your package does not have it" in reason(file)


def test_a_class_of_the_training_script_is_explained(tmp_path: Path) -> None:
    """__main__ of the training script is not __main__ here: the way out is a module of its own."""
    text = reason(written(tmp_path, b"\x80\x03c__main__\nTooLocal\nq\x00)\x81q\x01."))

    assert (
        "it needs TooLocal, which was defined in the script that trained the model (__main__.TooLocal)"
        in text
    )
    assert "packageUris" in text


@pytest.mark.parametrize(
    ("global_name", "message"),
    [
        (
            b"sklearn.linear_model.logistic\nLogisticRegression",
            "it needs module sklearn.linear_model.logistic",
        ),
        (
            b"xgboost.compat\nXGBoostLabelEncoder",
            "it needs XGBoostLabelEncoder of module xgboost.compat, which xgboost",
        ),
    ],
)
def test_what_a_library_no_longer_has_names_its_version(
    global_name: bytes, message: str, tmp_path: Path
) -> None:
    """A model of an old library names the version here and the ways out, not packageUris."""
    state = b"}q\x00X\x10\x00\x00\x00_sklearn_versionq\x01X\x06\x00\x00\x000.20.3q\x02sb."
    text = reason(written(tmp_path, b"\x80\x03c" + global_name + b"\n)\x81" + state))

    assert message in text
    assert "was saved with scikit-learn 0.20.3" in text
    assert "`pilotlight runtimes add 1.15 --create`, and create the version with runtimeVersion 1.15" in text
    assert "packageUris" not in text


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_a_version_is_read_without_the_bytes_behind_it(
    protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ends the text of a version in a pickle may be a letter."""
    monkeypatch.setattr("sklearn.base.__version__", "1.0.2")
    data = pickle.dumps(LinearRegression().fit(X, Y), protocol)

    assert pickle_loading.read_sklearn_version(written(tmp_path, pickletools.optimize(data))) == "1.0.2"


def test_a_module_inside_the_library_is_told_as_one(tmp_path: Path) -> None:
    """Compiled parts of scikit-learn name themselves without the package they are in."""
    state = b"_sklearn_version\x94\x8c\x051.5.2"
    pickled = b"\x80\x04c_loss\n__pyx_unpickle_CyLoss\n0U" + bytes([len(state)]) + state + b"."
    text = reason(written(tmp_path, pickled))

    assert "it needs module _loss, a private module of another version of scikit-learn" in text
    assert "saved with scikit-learn 1.5.2" in text


def test_a_state_another_version_wrote_names_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When unpickling breaks inside the library, both versions and the ways out are named."""
    monkeypatch.setattr("sklearn.base.__version__", "1.0.2")
    file = written(tmp_path, pickle.dumps(LinearRegression().fit(X, Y)))
    monkeypatch.undo()

    def broken(self: object, state: object) -> None:
        raise ValueError("node array from the pickle has an incompatible dtype")

    monkeypatch.setattr(LinearRegression, "__setstate__", broken)
    text = reason(file)

    assert "ValueError: node array from the pickle has an incompatible dtype" in text
    assert "was saved with scikit-learn 1.0.2" in text
    assert f"this server has scikit-learn {sklearn.__version__}" in text


def test_a_package_that_imports_what_a_library_does_not_have_is_named(tmp_path: Path) -> None:
    """The package is of the wrong version then, whatever scikit-learn has saved the model."""
    (tmp_path / "oldmapper.py").write_text("from sklearn.utils import no_such_function\n")
    file = written(tmp_path, b"\x80\x02coldmapper\nMapper\n.")

    with pytest.raises(LoadFailed) as failed:
        load_pickle(file, [tmp_path])

    text = str(failed.value)
    assert "ImportError: cannot import name 'no_such_function' from 'sklearn.utils'" in text
    assert "oldmapper imports it: use a version of oldmapper that goes with what is installed here." in text
    assert "Save it again" not in text


def test_another_version_that_still_loads_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence for the whole pipeline, with both versions and the way out."""
    monkeypatch.setattr("sklearn.base.__version__", "1.0.2")
    file = written(tmp_path, pickle.dumps(make_pipeline(StandardScaler(), LinearRegression()).fit(X, Y)))
    monkeypatch.undo()

    (text,) = load_pickle(file).warnings

    assert f"saved with scikit-learn 1.0.2 and is served with {sklearn.__version__}" in text
    assert "`pilotlight runtimes add 2.11 --create`" in text


class Talkative:
    """Warns when it is loaded."""

    def __setstate__(self, state: object) -> None:
        warnings.warn("the first\n  thing", UserWarning, stacklevel=1)
        warnings.warn("the first\n  thing", UserWarning, stacklevel=1)
        warnings.warn("of no use to a user", DeprecationWarning, stacklevel=1)

    def __getstate__(self) -> dict[str, int]:
        return {"a": 1}


def test_other_warnings_are_kept_once(tmp_path: Path) -> None:
    """What libraries warn of while loading is told, each text once."""
    assert load_pickle(written(tmp_path, pickle.dumps(Talkative()))).warnings == ("the first thing",)


class Leaves:
    """Exits when it is loaded."""

    def __setstate__(self, state: object) -> None:
        raise SystemExit("goodbye")

    def __getstate__(self) -> dict[str, int]:
        return {"a": 1}


def test_not_even_exit_gets_out_of_a_pickle(tmp_path: Path) -> None:
    """Code that exits while it is unpickled fails the load like any other error."""
    assert "SystemExit: goodbye" in reason(written(tmp_path, pickle.dumps(Leaves())))


@pytest.mark.parametrize("compression", [0, 3, ("gzip", 3), ("bz2", 3), ("xz", 3)])
@pytest.mark.parametrize("part", [0.3, 0.6, 0.99])
def test_a_file_that_is_cut_off_says_so(compression: Any, part: float, tmp_path: Path) -> None:
    """An interrupted upload is told from a broken file."""
    file = tmp_path / "model.joblib"
    joblib.dump(RandomForestRegressor(3, random_state=0).fit(X, Y), file, compress=compression)
    data = file.read_bytes()
    cut = int(len(data) * part)
    file.write_bytes(data[:cut])

    assert f"the file is cut off after {cut} bytes" in reason(file)


def test_an_empty_file_says_so(tmp_path: Path) -> None:
    """Nothing in the file is not a format problem."""
    assert reason(written(tmp_path, b"")) == "model.pkl is empty: upload it again."


def archive() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, a=X)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "a Git LFS pointer"),
        (b"\x89HDF\r\n\x1a\n" + bytes(100), "an HDF5 file, most likely of Keras"),
        (archive(), "a zip archive"),
        (b"binf" + bytes(100), "an XGBoost model written by save_model: name it model.bst"),
        (json.dumps({"a": 1}).encode(), "a JSON file"),
        (b"<html>", "an HTML or XML file"),
        (b"hello, world", "this is not a pickle or joblib file: it starts with b'hello, w'"),
        (b"\x93NUMPY" + bytes(64), "this is not a pickle or joblib file"),
    ],
)
@pytest.mark.parametrize("name", ["model.pkl", "model.joblib"])
def test_other_formats_are_recognised(name: str, data: bytes, message: str, tmp_path: Path) -> None:
    """A file that is no pickle says what it seems to be."""
    assert message in reason(written(tmp_path, data, name))


def test_a_pickle_of_python_2_is_recognised(tmp_path: Path) -> None:
    """Bytes that Python 2 called text cannot be read."""
    assert "written by Python 2" in reason(written(tmp_path, b"\x80\x02U\x02\xff\xfeq\x00."))


@given(st.binary(min_size=1, max_size=100))
def test_any_bytes_give_a_reason(data: bytes) -> None:
    """Whatever is in the file: a value or one sentence, never another exception."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        for start in (b"", b"\x80\x04\x95", b"x\x9c"):
            try:
                load_pickle(written(Path(folder), start + data))
            except LoadFailed as error:
                assert error.detail.startswith("model.pkl")


def test_old_linear_regressions_are_completed(tmp_path: Path) -> None:
    """LinearRegression got `positive` in 0.24; older ones get its default, inside pipelines too."""
    old = LinearRegression().fit(X, Y)
    del old.positive
    file = written(tmp_path, pickle.dumps(Pipeline([("scale", StandardScaler().fit(X)), ("fit", old)])))

    model = load_pickle(file).model

    assert model.steps[1][1].positive is False
    assert model.steps[1][1].get_params()["positive"] is False


def double(value: Any) -> Any:
    return value * 2


def test_the_walk_finds_everything_once() -> None:
    """Fitted copies, functions in partials, arrays of objects; no endless loop, no plain values."""
    forest = RandomForestRegressor(3).fit(X, Y)
    holder = types.SimpleNamespace(
        models=[forest, forest],
        table=np.array([StandardScaler()], object),
        call=functools.partial(double, np.sin),
    )
    holder.itself = holder

    found = list(walk_parts(holder))

    assert found.count(forest) == 1
    assert {id(tree) for tree in forest.estimators_} <= {id(part) for part in found}
    assert any(isinstance(part, StandardScaler) for part in found)
    assert double in found and np.sin in found


@pytest.mark.parametrize(
    ("part", "package"),
    [(StandardScaler(), "sklearn"), (np.log1p, "numpy"), (double, "tests"), (len, "builtins"), (X, "numpy")],
)
def test_the_root_is_the_package_a_part_comes_from(part: object, package: str) -> None:
    """Objects by their class, functions by their module."""
    assert root_package(part) == package


def test_files_that_name_the_joblib_of_scikit_learn(tmp_path: Path) -> None:
    """As those may that were saved before scikit-learn 0.23, which had a copy of it."""
    opcodes = b"\x80\x03csklearn.externals.joblib.numpy_pickle\nNumpyArrayWrapper\n."

    assert load_pickle(written(tmp_path, opcodes)).model is joblib.numpy_pickle.NumpyArrayWrapper
