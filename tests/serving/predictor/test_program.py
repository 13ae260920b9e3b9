"""What a predictor process does with the files of models."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import joblib
import pytest

from serving.predictor import PROGRAM

# scikit-learn 0.20 and older has a copy of joblib, and environments of that time also have joblib itself.
_LOAD = """
import sys
sys.path[:0] = sys.argv[1:3]
import program
print(program._unpickled(sys.argv[3]).tolist())
"""
_DUMP = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy
from {place} import dump
dump(numpy.arange(4.0), sys.argv[2], compress=int(sys.argv[3]))
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
