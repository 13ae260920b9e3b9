"""Batch predictions as tests see them: to submit, to wait for, and what they have left."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import httpx

from serving.gateway.jobs.job_kind import JOB_PROCESS
from tests.bounds import JOB_SECONDS
from tests.emulator import Emulator
from tests.server import Server, until

ENDS = ("SUCCEEDED", "FAILED", "CANCELLED")
# What a job may leave in its output folder besides its results.
CLAIM = ".pilotlight/claim"
# Bytes of the state folder that a job may keep.
_KEPT = 1 << 16


def job(job_id: str, inputs: str | list[str], output: Path | str, **details: Any) -> dict[str, Any]:
    """A job that reads `inputs`; `details` are further fields, those of its predictionInput among them."""
    named = [name for name in ("labels", "batchOptions") if name in details]
    outside: dict[str, Any] = {name: details.pop(name) for name in named}
    given = {
        "dataFormat": "JSON",
        "inputPaths": [inputs] if isinstance(inputs, str) else inputs,
        "outputPath": str(output),
        "region": "us-central1",
        **details,
    }
    return {"jobId": job_id, "predictionInput": given, **outside}


def submit(server: Server, body: Mapping[str, Any], project: str = "tests") -> str:
    """Submit a job and return its full name."""
    reply = server.call("POST", f"projects/{project}/jobs", json=body)
    assert reply.status == 200, reply.json
    return f"projects/{project}/jobs/{body['jobId']}"


def get(server: Server, name: str) -> dict[str, Any]:
    """The job as it is."""
    found: dict[str, Any] = server.call("GET", name).json
    return found


def finished(server: Server, name: str, *, seconds: float = JOB_SECONDS) -> dict[str, Any]:
    """The job once it has ended, when no process of it is left."""

    def ended() -> dict[str, Any] | None:
        found = get(server, name)
        return found if found["state"] in ENDS else None

    return until(ended, f"{name} has ended", seconds=seconds)


def outcome(ended: Mapping[str, Any]) -> tuple[Any, int, int]:
    """How a job has ended, and its counts of predictions and errors, which are strings on the wire."""
    output = ended["predictionOutput"]
    counts = [output.get(name, "0") for name in ("predictionCount", "errorCount")]
    assert all(isinstance(count, str) for count in counts)
    return ended["state"], int(counts[0]), int(counts[1])


def write_lines(file: Path, rows: Iterable[Any]) -> Path:
    """A file of JSON lines; makes its folder."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def results(folder: Path) -> list[Any]:
    """What the result files of a folder hold, in order."""
    found = sorted(folder.glob("prediction.results-*"))
    counts = {file.name.rpartition("-of-")[2] for file in found}
    assert counts in ({f"{len(found):05d}"}, set()), found
    return [json.loads(line) for file in found for line in file.read_text().splitlines()]


def files(folder: Path) -> set[str]:
    """The files below a folder, by the rest of their names."""
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


def errors(folder: Path) -> list[dict[str, Any]]:
    """The records that have no result, as the errors files name them."""
    found = sorted(folder.glob("prediction.errors-*.jsonl"))
    return [json.loads(line) for file in found for line in file.read_text().splitlines()]


def stats(folder: Path) -> dict[str, int]:
    """How often each error was met."""
    text = (folder / "prediction.errors_stats-00000-of-00001").read_text()
    return dict(ast.literal_eval(line) for line in text.splitlines())


def names(emulator: Emulator, uri: str) -> list[str]:
    """The names of the objects below `uri`, from there on."""
    bucket, _, prefix = uri.removeprefix("gs://").partition("/")
    listed = httpx.get(f"{emulator.url}/storage/v1/b/{bucket}/o", params={"prefix": f"{prefix}/"}).json()
    return [item["name"].removeprefix(f"{prefix}/") for item in listed.get("items", [])]


def objects(emulator: Emulator, uri: str) -> dict[str, bytes]:
    """The objects below `uri`, by the same names."""
    return {name: emulator.get(f"{uri}/{name}") for name in names(emulator, uri)}


def download(emulator: Emulator, uri: str, folder: Path) -> Path:
    """Copy the objects below `uri` into a folder."""
    for name, data in objects(emulator, uri).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def processes(server: Server) -> dict[str, list[int]]:
    """The processes of jobs, by what they are."""
    found: dict[str, list[int]] = {"process": [], "worker": []}
    for pid, command in server.processes().items():
        is_cold = "autoscaler.module_process" in command and command.split()[-1] == "batch"
        is_forked = "autoscaler.pilot" in command and _read_name(pid) == JOB_PROCESS
        if is_cold or is_forked:
            found["process"].append(pid)
        elif "batch.beam.worker" in command:
            found["worker"].append(pid)
    return found


def _read_name(pid: int) -> str:
    """As `ps` shows it; "" for one that has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def check_nothing_is_left(server: Server, folder: Path) -> None:
    """Of jobs that have ended: no process, only whole files in the output folder, only logs in the state."""
    until(lambda: not any(processes(server).values()), "no process is left")
    assert {name for name in files(folder) if not name.startswith("prediction.")} <= {CLAIM}
    # It is tidied up just after the job is seen to have ended.
    until(lambda: _names(server) <= {"log"}, f"only logs are left, not {_names(server)}")
    kept = [file.stat().st_size for file in (server.state_dir / "jobs").rglob("*") if file.is_file()]
    assert all(size < _KEPT for size in kept)


def _names(server: Server) -> set[str]:
    return {entry.name for entry in (server.state_dir / "jobs").glob("*/*")}
