"""The steps of each Dockerfile, carried out, and what a container of it answers on Vertex AI."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest

from serving.container_platform import MODEL_MOUNT
from tests.bounds import HANG_SECONDS
from tests.conftest import Report
from tests.dockerfile import ROOT, build, read
from tests.soak.models import Model

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

MIB = 1 << 20
PLAIN = "the plain way"


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that a user finds who is none of this machine's; pytest's own are its user's alone."""
    with tempfile.TemporaryDirectory(prefix="pilotlight-container-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.parametrize(("suffix", "kind"), [("sklearn", "scikit-learn"), ("tensorflow", "tensorflow")])
def test_a_container_predicts(
    suffix: str, kind: str, public: Path, trained: Mapping[str, Model], report: Report
) -> None:
    """As its user, at the port and the routes that it is told, with the model that it is told."""
    model = trained[kind]
    shutil.copytree(model.folder, public / "model")
    image = build(read((ROOT / f"serving/containers/Dockerfile.{suffix}").read_text()), public / "image")
    size = sum(file.stat().st_size for file in (public / "image/venv").rglob("*") if file.is_file())
    report(f"container {suffix}: {size / MIB:.0f} MiB beside its base")
    prepared = next(
        step
        for step in read((ROOT / "serving/containers/Dockerfile.model").read_text())
        if step.word == "RUN"
    )
    command = prepared.text.replace(str(MODEL_MOUNT), str(public / "model"))
    subprocess.run(["/bin/sh", "-euc", command], check=True, env={**image.environment, "HOME": "/"})
    platform = {
        "AIP_HTTP_PORT": "0",
        "AIP_HEALTH_ROUTE": "/ping",
        "AIP_PREDICT_ROUTE": "/ask",
        "AIP_STORAGE_URI": str(public / "model"),
    }
    with image.start(platform, stderr=sys.stderr) as process, httpx.Client(timeout=60) as client:
        try:
            line = next(line for line in process.stdout or () if line.startswith("Ready on "))
            address = line.removeprefix("Ready on ").partition(": ")[0]

            assert address.startswith("http://0.0.0.0:")
            assert client.get(f"{address}/ping").status_code == 200
            answer = client.post(f"{address}/ask", json={"instances": model.instances})
            assert (
                kind == "tensorflow" or client.get(f"{address}/stats").json()["acceleration"]["way"] != PLAIN
            )
            assert (answer.status_code, list(answer.json())) == (200, ["predictions"])
        finally:
            process.terminate()
        assert process.wait(HANG_SECONDS) == 0
