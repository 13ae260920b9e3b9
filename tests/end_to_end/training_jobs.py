"""Training jobs as tests see them: programs to submit, and what becomes of them."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

from tests.end_to_end.jobs import finished, submit
from tests.server import Server, until

PARENT = "projects/tests"


def write_wheel(folder: Path, source: str, name: str = "trainer") -> Path:
    """A wheel with the module NAME.task of this source text."""
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-0.1-py3-none-any.whl"
    info = f"{name}-0.1.dist-info"
    tags = "Root-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{name}/__init__.py", "")
        archive.writestr(f"{name}/task.py", dedent(source))
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: tests\n{tags}")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


def training_job(job_id: str, wheel: Path, **given: Any) -> dict[str, Any]:
    """A job that runs the wheel's trainer.task; `given` are further fields of its trainingInput."""
    fields = {
        "region": "us-central1",
        "scaleTier": "BASIC",
        "packageUris": [str(wheel)],
        "pythonModule": "trainer.task",
        **given,
    }
    return {"jobId": job_id, "trainingInput": fields}


def list_log(server: Server, job_id: str, condition: str = "") -> list[dict[str, Any]]:
    """The entries of a job's log, as gcloud asks for them."""
    asked = f'(resource.type="ml_job" OR resource.type="cloudml_job") AND resource.labels.job_id="{job_id}"'
    body = {
        "resourceNames": [PARENT],
        "orderBy": "timestamp asc",
        "pageSize": 1000,
        "filter": f'{asked} {condition} AND timestamp>="1970-01-01T01:00:00.000000000Z"',
    }
    reply = server.call("POST", "/v2/entries:list", json=body)
    assert reply.status == 200, reply.json
    found: list[dict[str, Any]] = reply.json.get("entries", [])
    return found


def texts(entries: list[Mapping[str, Any]] | list[dict[str, Any]]) -> list[str]:
    return [entry["textPayload"] for entry in entries]


def start_pilot(server: Server, wheel: Path, **given: Any) -> None:
    """Run a job, and wait until the pilot is ready that the next such job is forked from."""
    ended = finished(server, submit(server, training_job("starts_the_pilot", wheel, **given)))
    assert ended["state"] == "SUCCEEDED", ended
    until(lambda: server.get_status()["pilots"][0]["state"] == "lit", "the pilot is ready")
