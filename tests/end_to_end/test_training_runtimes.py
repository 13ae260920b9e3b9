"""Training jobs whose runtimeVersion names another Python of this machine."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compat.environments import RUNTIME_1_15, Unavailable, interpreter, python_of
from tests.end_to_end.jobs import finished, submit
from tests.end_to_end.training_jobs import PARENT, list_log, texts, training_job, write_wheel
from tests.server import Server, running_server, until

VERSIONS = {"1.15": "3.6", "2.1": "3.8", "2.11": "3.10"}
# In words that Python 3.6 understands.
PROGRAM = """
    import json, os, sys
    import hypertune
    config = json.loads(os.environ["TF_CONFIG"])
    hypertune.HyperTune()
    print("%d.%d" % sys.version_info[:2], config["task"]["type"], __name__, *sys.argv[1:-1])
    with open(os.path.join(sys.argv[-1], config["task"]["type"]), "w") as file:
        json.dump([sys.prefix, hypertune.__file__], file)
"""


def find_python(version: str) -> Path:
    try:
        return interpreter(version)
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def pythons(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An environment of each Python, with nothing in it but pip."""
    folder = tmp_path_factory.mktemp("pythons")
    for runtime, version in VERSIONS.items():
        subprocess.run([find_python(version), "-m", "venv", folder / runtime], check=True)
    return {runtime: folder / runtime / "bin" / "python" for runtime in VERSIONS}


@pytest.fixture(scope="module")
def server(pythons: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    state = tmp_path_factory.mktemp("runtimes") / "state"
    flags = [word for runtime, python in pythons.items() for word in ("--runtime", f"{runtime}={python}")]
    environment = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1"}
    with running_server(state, *flags, environment=environment) as server:
        yield server


def cluster_job(job_id: str, wheel: Path, runtime: str, folder: Path, **given: Any) -> dict[str, Any]:
    return training_job(
        job_id, wheel, runtimeVersion=runtime, pythonVersion=VERSIONS[runtime], args=["--epochs", "2"],
        scaleTier="CUSTOM", masterType="n1-standard-4", workerType="n1-standard-4", workerCount="1",
        jobDir=str(folder), **given,
    )  # fmt: skip


@pytest.mark.parametrize("runtime", VERSIONS)
def test_a_job_on_another_python(
    server: Server, pythons: dict[str, Path], tmp_path: Path, runtime: str
) -> None:
    """Its packages are installed for that one; what the server provides is there too."""
    wheel = write_wheel(tmp_path, PROGRAM)
    job_id = f"on_{runtime.replace('.', '_')}"

    ended = finished(server, submit(server, cluster_job(job_id, wheel, runtime, tmp_path / "out")))

    assert ended["state"] == "SUCCEEDED", ended
    primary = "master" if runtime.startswith("1.") else "chief"
    lines = texts(list_log(server, job_id, 'AND resource.labels.task_name="master-replica-0"'))
    assert lines == [f"{VERSIONS[runtime]} {primary} __main__ --epochs 2 --job-dir"]
    prefix, hypertune = json.loads((tmp_path / "out" / primary).read_text())
    assert str(server.state_dir) in prefix  # an environment of its own, made of that Python
    assert "training/provided/hypertune.py" in hypertune


@pytest.mark.soak
def test_a_program_of_a_later_python(server: Server, tmp_path: Path) -> None:
    """The error is the old interpreter's."""
    wheel = write_wheel(tmp_path, "print(x := 1)")

    ended = finished(server, submit(server, cluster_job("later", wheel, "1.15", tmp_path / "out")))

    assert ended["state"] == "FAILED"
    assert "SyntaxError" in ended["errorMessage"]


ESTIMATOR = """
    import os, sys
    import joblib, sklearn
    from sklearn.ensemble import RandomForestClassifier
    model = RandomForestClassifier(n_estimators=3, random_state=0).fit([[0.0], [1.0], [3.0]], [0, 0, 1])
    joblib.dump(model, os.path.join(sys.argv[-1], "model.joblib"))
    print("scikit-learn", sklearn.__version__)
"""


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_model_of_an_old_library(tmp_path: Path) -> None:
    """Trained and served by one Python, whose pickles no other reads."""
    try:
        python = python_of(RUNTIME_1_15)
    except Unavailable as error:
        pytest.skip(str(error))
    wheel = write_wheel(tmp_path, ESTIMATOR)
    job = training_job(
        "forest", wheel, runtimeVersion="1.15", pythonVersion="3.7", jobDir=str(tmp_path / "o")
    )
    deploy = {"deploy": {"model": "old", "version": "v1"}}
    with running_server(tmp_path / "state", "--runtime", f"1.15={python}") as server:
        server.create_model(f"{PARENT}/models/old")

        ended = finished(server, submit(server, {**job, "trainingOptions": deploy}))

        assert ended["state"] == "SUCCEEDED", ended
        assert "scikit-learn 0.22.2.post1" in texts(list_log(server, "forest"))
        version = f"{PARENT}/models/old/versions/v1"
        until(lambda: server.call("GET", version).json.get("state") == "READY", "the version is ready")
        assert server.predict(version, [[0.0], [3.0]]).json == {"predictions": [0, 1]}
