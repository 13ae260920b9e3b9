"""serving.acceleration.verification_process"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import joblib
import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier

from serving import acceleration_record
from serving.acceleration.verification_process import is_verifiable
from serving.acceleration_record import AccelerationRecord
from serving.runtimes import LoadSpec
from tests.bounds import HANG_SECONDS
from tests.serving.acceleration.conducting import KEY

ROOT = Path(__file__).parents[3]


def conducted(case: str, folder: Path, *more: Path) -> AccelerationRecord:
    module = "tests.serving.acceleration.conducting"
    subprocess.run(
        [sys.executable, "-m", module, case, folder, *more], cwd=ROOT, check=True, timeout=HANG_SECONDS
    )
    verdict = acceleration_record.read_record(folder)
    assert verdict is not None
    return verdict


def test_the_verdict_is_stored_with_the_converted_form(tmp_path: Path) -> None:
    verdict = conducted("kept", tmp_path)

    assert verdict.is_accelerated
    assert verdict.key == KEY
    assert (tmp_path / verdict.tried[0].form).read_text() == "1.0"


def test_a_crash_costs_the_one_that_crashed(tmp_path: Path) -> None:
    verdict = conducted("crashing", tmp_path)

    assert {one.name: one.refused for one in verdict.tried} == {
        "crashing": "it ended with SIGSEGV",
        "good": "",
    }
    assert {one.way for one in verdict.ranges} == {"good"}


def test_what_hangs_is_killed(tmp_path: Path) -> None:
    verdict = conducted("hanging", tmp_path)

    assert verdict.tried[0].refused == "it took more than 1 s"
    assert verdict.is_accelerated


def test_a_model_that_fails_to_load_leaves_a_verdict_that_says_so(tmp_path: Path) -> None:
    verdict = conducted("failing", tmp_path)

    assert (
        verdict.failure
        == "The verification failed: Failed to load model: There is no model. (Error code: 0)."
    )
    assert not verdict.is_accelerated


def test_a_process_in_the_background_is_waited_for(tmp_path: Path) -> None:
    model_dir = tmp_path / "model"
    model_dir.mkdir()
    rows = np.random.default_rng(0).standard_normal((50, 3))
    joblib.dump(RandomForestClassifier(20, random_state=0).fit(rows, rows[:, 0] > 0), model_dir / "model.pkl")

    assert conducted("background", tmp_path / "record", model_dir).is_accelerated


@pytest.mark.parametrize("case", ["without offers", "not accelerable"])
def test_a_model_without_offers_has_a_verdict_too(tmp_path: Path, case: str) -> None:
    assert conducted(case, tmp_path).failure == "There is no acceleration for this kind of model."


@pytest.mark.parametrize(
    ("source", "open_to_study"),
    [
        (LoadSpec(Path()), True),
        (LoadSpec(Path(), "XGBOOST"), True),
        (LoadSpec(Path(), "CUSTOM"), False),
        (LoadSpec(Path(), prediction_class="a.B"), False),
        (LoadSpec(Path(), "SCIKIT_LEARN", packages=(Path("x"),)), False),
    ],
)
def test_user_code_is_not_studied(source: LoadSpec, open_to_study: bool) -> None:
    assert is_verifiable(source) is open_to_study
