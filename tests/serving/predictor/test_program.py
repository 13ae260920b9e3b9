"""What a predictor process does with the files of models."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import joblib
import pytest
import xgboost

from serving.predictor import PROGRAM
from tests.compat.environments import Unavailable, interpreter

# scikit-learn 0.20 and older has a copy of joblib, and environments of that time also have joblib itself.
_LOAD = """
import sys
sys.path[:0] = sys.argv[1:3]
import program
print(program._load_pickle(sys.argv[3]).tolist())
"""
_DUMP = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy
from {place} import dump
dump(numpy.arange(4.0), sys.argv[2], compress=int(sys.argv[3]))
"""
_REFUSED = """
import sys
sys.path.insert(0, sys.argv[1])
import program
try:
    program.load_booster({"model_dir": sys.argv[2], "file": sys.argv[3]})
except program.PredictorError as refused:
    print(*refused.args)
"""
_WRITTEN_BY = """
import sys
sys.path.insert(0, sys.argv[1])
import program
print(*program.read_xgboost_version(open(sys.argv[2], "rb").read()), sep=".")
"""
_ABOUT = """
import sys
sys.path.insert(0, sys.argv[1])
import program

class Encoder:
    def get_params(self):
        return {}

    def transform(self, rows):
        return [self.missing for row in rows]

def asked(value):
    try:
        Encoder().transform([1]) if value is None else value.lower()
    except AttributeError as error:
        return program.describe_raised(error)["package"]

print(asked(None), asked(1), sep=",")
"""


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a package called sklearn that is nothing but the copy of joblib in it."""
    folder = tmp_path_factory.mktemp("old")
    externals = folder / "sklearn" / "externals"
    shutil.copytree(Path(joblib.__file__).parent, externals / "joblib", ignore=shutil.ignore_patterns("test"))
    for package in (externals.parent, externals):
        (package / "__init__.py").touch()
    return folder


@pytest.mark.parametrize(
    ("place", "compress"), [("joblib", 0), ("sklearn.externals.joblib", 0), ("sklearn.externals.joblib", 3)]
)
def test_a_file_is_read_by_the_joblib_that_wrote_it(
    place: str, compress: int, old: Path, tmp_path: Path
) -> None:
    """Each of the two takes only its own arrays for arrays."""
    file = tmp_path / "model.joblib"
    run(_DUMP.format(place=place), old, file, compress)

    assert run(_LOAD, old, Path(PROGRAM).parent, file) == "[0.0, 1.0, 2.0, 3.0]"


def run(code: str, *arguments: object) -> str:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("file", ["model.json", "model.ubj", "model.bst"])
def test_a_file_of_a_later_xgboost_is_refused(file: str, tmp_path: Path) -> None:
    """Earlier ones read it without an error, and may answer wrongly or nothing at all."""
    path = tmp_path / file
    booster = xgboost.train({}, xgboost.DMatrix([[1.0], [2.0]], label=[1.0, 2.0]), 1)
    if path.suffix == ".bst":  # the parameters of a learner, with the version at its place
        path.write_bytes(b"binf" + struct.pack("<fIiiiII", 0.5, 1, 0, 0, 0, 99, 1) + bytes(200))
    else:
        booster.save_model(path)
        data = path.read_bytes()
        place = data.rindex(b"version")
        numbers = rb"\[\d+,\d+" if path.suffix == ".json" else rb"i.i."
        later = b"[99,1" if path.suffix == ".json" else b"i\x63i\x01"
        path.write_bytes(data[:place] + re.sub(numbers, later, data[place:], flags=re.DOTALL))

    said = run(_REFUSED, Path(PROGRAM).parent, tmp_path, file)

    assert said.startswith(f"{file} was written by XGBoost 99.1; this interpreter has {xgboost.__version__}")


def test_the_version_in_files_of_this_xgboost(tmp_path: Path) -> None:
    """It is read from both formats."""
    booster = xgboost.train({}, xgboost.DMatrix([[1.0], [2.0]], label=[1.0, 2.0]), 1)
    for file in (tmp_path / "model.json", tmp_path / "model.ubj"):
        booster.save_model(file)

        assert xgboost.__version__.startswith(run(_WRITTEN_BY, Path(PROGRAM).parent, file) + ".")


@pytest.mark.parametrize("version", ["3.6", "3.9", "3.12"])
def test_an_estimator_that_lacks_an_attribute_is_found(version: str) -> None:
    """Also before Python 3.10, where the exception does not tell what was asked for it."""
    try:
        python = interpreter(version)
    except Unavailable as missing:
        pytest.skip(str(missing))

    done = subprocess.run(
        [python, "-c", _ABOUT, str(PROGRAM.parent)], capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout == "__main__,\n"
