"""Pickles of old versions of scikit-learn, read by the one that is installed: right answers, or refused.

No model of another version may be deployed and then fail for each request, nor answer otherwise than the
library that made it. Each is tried in a process of its own, as a node would.
"""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.compat.environments import Environment, Unavailable, python_of
from tests.compat.test_runtimes import ENVIRONMENTS, PROGRAM

ALL = {
    "scikit-learn 0.20": Environment(
        "3.7", ("scikit-learn==0.20.4", "numpy==1.16.6", "pandas==0.25.3", "scipy==1.2.3", "joblib<1.3")
    ),
    "scikit-learn 1.5": Environment("3.12", ("scikit-learn==1.5.2", "pandas<3")),
    **{name: made for name, made in ENVIRONMENTS.items() if name.startswith("scikit-learn")},
}
# Those of 0.20 have no gradient boosting by histograms.
LEAST_MODELS = 38


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("library", sorted(ALL))
def test_old_pickles_are_answered_rightly_or_refused(library: str, tmp_path: Path) -> None:
    """Nothing that is deployed fails, nothing that would answer is refused when it is tried."""
    try:
        python = python_of(ALL[library])
    except Unavailable as error:
        pytest.skip(f"{library}: {error}")
    for kind in ("scikit-learn", "scikit-learn-more"):
        subprocess.run([python, PROGRAM, kind, tmp_path], check=True, capture_output=True, timeout=900)
    folders = sorted(tmp_path.iterdir())
    assert len(folders) >= LEAST_MODELS
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=10) as pool:
        for folder, found in zip(folders, pool.map(outcome, folders), strict=True):
            assert found in ("right", "refused", "fails"), (folder.name, found)


def outcome(folder: Path) -> str:
    """What becomes of a model: its verdict, held against what it really does."""
    from serving.errors import LoadFailed, ServingError
    from serving.runtimes import LoadSpec, load_model
    from serving.runtimes.input_conversion import convert_instances
    from serving.runtimes.model_check import describe_runtime_versions, judge_trials, run_trials
    from serving.runtimes.schema_inference import infer_model_schema

    warnings.simplefilter("ignore")
    told = json.loads((folder / "expected.json").read_text())
    try:
        runtime = load_model(LoadSpec(folder))
    except LoadFailed as error:
        return "refused" if "pilotlight runtimes add" in error.message else error.message
    verdict = judge_trials(
        tuple(run_trials(runtime, infer_model_schema(runtime, folder), ())),
        lambda: describe_runtime_versions(runtime),
    )
    try:
        answers: Any = runtime.predict(convert_instances(told["rows"], runtime.input_format({})))
    except ServingError as error:
        named = "pilotlight runtimes add" in verdict.failure
        return "fails" if named else f"deployed, and then: {error.message}"
    if verdict.failure:
        return f"answers, and is refused: {verdict.failure}"
    return "right" if _is_equal(np.asarray(answers), np.asarray(told["predictions"])) else "wrong"


def _is_equal(answers: Any, expected: Any) -> bool:
    """To the last bits of matrix products, which change with the version of BLAS."""
    if answers.dtype.kind == "f":
        return bool(np.allclose(answers, expected, rtol=1e-12, atol=1e-12))
    return bool(np.array_equal(answers, expected))
