"""Models of every kind, made by versions of XGBoost since 0.72, answered as by the one that made them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost as xgb

from serving.errors import LoadFailed
from serving.runtimes import LoadSpec, load_model
from tests.compat.environments import RUNTIME_1_15, Environment, Unavailable, python_of

PROGRAM = Path(__file__).with_name("xgboost_models.py")
OLD = ("numpy<2", "scipy", "scikit-learn", "pandas")
NEW = ("numpy", "scipy", "scikit-learn", "pandas")
ENVIRONMENTS = {
    "0.72.1": Environment("3.7", OLD, ("xgboost==0.72.1",)),
    "0.82": Environment("3.7", OLD, ("xgboost==0.82",)),
    "0.90": RUNTIME_1_15,
    "1.0.2": Environment("3.7", OLD, ("xgboost==1.0.2",)),
    "1.1.1": Environment("3.7", OLD, ("xgboost==1.1.1",)),
    "1.2.1": Environment("3.7", OLD, ("xgboost==1.2.1",)),
    "1.3.3": Environment("3.7", OLD, ("xgboost==1.3.3",)),
    "1.4.2": Environment("3.7", OLD, ("xgboost==1.4.2",)),
    "1.5.2": Environment("3.7", OLD, ("xgboost==1.5.2",)),
    "1.6.2": Environment("3.8", OLD, ("xgboost==1.6.2",)),
    "1.7.6": Environment("3.8", OLD, ("xgboost==1.7.6",)),
    "2.0.3": Environment("3.9", OLD, ("xgboost==2.0.3",)),
    "2.1.4": Environment("3.10", NEW, ("xgboost==2.1.4",)),
    # This one does not go together with scikit-learn 1.6 and later.
    "3.0.5": Environment("3.11", ("numpy", "scipy", "scikit-learn<1.6", "pandas"), ("xgboost==3.0.5",)),
    "3.1.3": Environment("3.11", NEW, ("xgboost==3.1.3",)),
    "3.2.0": Environment("3.11", NEW, ("xgboost==3.2.0",)),
}
SHORT = "0.90"
A_FEW = (
    "reg-squarederror",
    "multi-softprob",
    "gblinear-count-poisson",
    "dart-binary-logistic",
    "stopped-regressor",
)
# The last version that reads binary files says what today's would say of them.
READER = "3.0.5"
READ = """
import json, sys
import numpy as np
import xgboost as xgb
answers = {}
for file, instances in json.load(sys.stdin).items():
    matrix = xgb.DMatrix(np.array(instances, np.float64))
    try:
        answers[file] = xgb.Booster(model_file=file).predict(matrix, validate_features=False).tolist()
    except xgb.core.XGBoostError:  # it does not read reg:gamma of early versions
        continue
json.dump(answers, sys.stdout)
"""


@dataclass(frozen=True)
class File:
    """A file of a model, and what its version answers."""

    path: Path
    expected: dict[str, Any]

    @property
    def model(self) -> str:
        return self.path.parent.name

    @property
    def version(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.expected["version"].split("."))

    @property
    def instances(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.array(self.expected["instances"], np.float64)

    @property
    def answer(self) -> Any:
        """A pickled estimator answers as its own predict, a booster as its own."""
        pickled = self.path.name == "model.pkl" and "estimator" in self.expected
        return np.array(self.expected["estimator" if pickled else "predict"], np.float32)

    @property
    def refusal(self) -> str:
        """How today's server refuses it, "" if it does not."""
        if self.path.name == "model.pkl" and self.version < (1, 6):
            return "was pickled with XGBoost 1.5 or an earlier one"
        if self.model == "no-rounds":
            return "has no boosting rounds"
        if self.model == "vector-leaf" and self.version < (3, 2):
            return "trees with vectors as leaves"
        if self.path.name == "model.json" and self.model == "pruned" and self.version < (1, 1):
            return "deleted_nodes_"  # its JSON does not count them, and no later version reads it
        return ""

    @property
    def exact(self) -> bool:
        """Whether the versions add in the same order: until 1.3 (1.4 for DART) the base score came last."""
        return self.version >= ((1, 4) if "dart" in self.model else (1, 3))


def models_of(version: str, folder: Path, *names: str) -> list[File]:
    """What an XGBoost writes. Skips where there is none to be had."""
    try:
        python = python_of(ENVIRONMENTS[version])
    except Unavailable as error:
        pytest.skip(f"XGBoost {version}: {error}")
    subprocess.run([python, PROGRAM, folder, *names], check=True, capture_output=True, timeout=600)
    return list(files_in(folder))


def files_in(folder: Path) -> Iterator[File]:
    for expected in sorted(folder.glob("*/expected.json")):
        told = json.loads(expected.read_text())
        for path in sorted(expected.parent.iterdir()):
            if path != expected and path.stat().st_size:
                yield File(path, told)


def difference(file: File, folder: Path) -> str:
    """In what our answer is not the one of the file's own version, "" if it is."""
    folder.mkdir(parents=True)
    name = "model.bst" if file.path.name == "deprecated.bst" else file.path.name
    (folder / name).write_bytes(file.path.read_bytes())
    try:
        runtime = load_model(LoadSpec(folder, "XGBOOST"))
    except LoadFailed as error:
        wanted = file.refusal
        return "" if wanted and wanted in error.detail else f"refused: {error.detail}"
    if file.refusal:
        return "not refused"
    got, want = np.asarray(runtime.predict(file.instances)).astype(np.float32), file.answer
    if got.size != want.size:
        return f"{got.shape} for {want.shape}"
    want = want.reshape(got.shape)
    alike = np.array_equal(got, want, equal_nan=True) if file.exact else np.allclose(got, want, 2e-5, 1e-6)
    return "" if alike else f"differs by {np.nanmax(np.abs(got - want))}"


def differences(files: list[File], folder: Path) -> dict[str, str]:
    found = {
        f"{file.model}/{file.path.name}": difference(file, folder / file.model / file.path.name)
        for file in files
    }
    return {name: text for name, text in found.items() if text}


@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_some_models_of_an_old_version_answer_as_in_their_own(tmp_path: Path) -> None:
    """One of each booster, and an estimator that was stopped early."""
    files = models_of(SHORT, tmp_path / "made", *A_FEW)

    assert {file.model for file in files} == set(A_FEW)
    assert differences(files, tmp_path / "served") == {}


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("version", ENVIRONMENTS)
def test_all_models_answer_as_in_their_own_version(version: str, tmp_path: Path) -> None:
    """All objectives, boosters, estimators and files, to the last bit or refused with the reason."""
    files = models_of(version, tmp_path / "made")

    assert len(files) > 80
    assert differences(files, tmp_path / "served") == {}


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("version", [name for name in ENVIRONMENTS if name < READER])
def test_binary_files_answer_as_in_the_last_version_that_reads_them(version: str, tmp_path: Path) -> None:
    """A converted model is to the last bit what XGBoost 3.0 makes of the original."""
    binary = [
        file
        for file in models_of(version, tmp_path / "made")
        if file.path.suffix == ".bst" and not file.refusal and not file.path.read_bytes().startswith(b"{")
    ]
    try:
        reader = python_of(ENVIRONMENTS[READER])
    except Unavailable as error:
        pytest.skip(f"XGBoost {READER}: {error}")
    asked = {str(file.path): file.instances.tolist() for file in binary if comparable(file)}
    done = subprocess.run(
        [reader, "-c", READ], input=json.dumps(asked), check=True, capture_output=True, text=True
    )
    answers = json.loads(done.stdout)

    assert len(answers) > 30
    for number, (path, answer) in enumerate(answers.items()):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        (folder / "model.bst").write_bytes(Path(path).read_bytes())
        (instances,) = [file.instances for file in binary if str(file.path) == path]
        got = np.asarray(load_model(LoadSpec(folder, "XGBOOST")).predict(instances))
        assert np.array_equal(got, np.array(answer, np.float32).reshape(got.shape)), path


def comparable(file: File) -> bool:
    """Not if an estimator has saved it that was stopped early: a booster predicts with all its rounds. And
    not where the reader takes for a margin what was a probability."""
    misread = file.model == "binary-logitraw" and (1, 0) <= file.version < (1, 3)
    return not file.model.startswith("stopped-") and not misread


def test_an_estimator_can_be_saved_where_the_server_runs(tmp_path: Path) -> None:
    """The libraries that are installed here go together."""
    rows, labels = np.arange(20.0).reshape(10, 2), np.arange(10) % 2
    estimator = xgb.XGBClassifier(n_estimators=2).fit(rows, labels)

    estimator.save_model(tmp_path / "model.json")

    expected = estimator.predict_proba(rows)[:, 1]
    assert np.array_equal(np.asarray(load_model(LoadSpec(tmp_path)).predict(rows)), expected)
