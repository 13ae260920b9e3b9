"""How soon a training job runs its program: from the request until the program's first line, over HTTP.

    python -m loadtests.bench.training [JOBS]

JOBS (20) jobs of each kind, one after the other, on a server that has nothing else to do; beside them
`python -m` by hand, from the start of its process on. The packages are in the cache but for the last row,
whose packages and servers are new each time, with pilots off.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from textwrap import dedent
from typing import Any

from loadtests.bench.gateway import PILOTLIGHT, ControlClient
from loadtests.bench.reporting.tables import format_table
from loadtests.bench.targets.processes import exit_on_sigterm, run_process
from loadtests.bench.targets.servers import find_free_port

_JOBS, _NEW_JOBS = 20, 3
_PARENT = "/v1/projects/p/jobs"
_ENDS = {"SUCCEEDED", "FAILED", "CANCELLED"}
# A pilot forks the next spare within it, and a job's end is over.
_PAUSE_SECONDS = 0.5
_END_SECONDS = 120.0
# Its first line reads the clock; the age of its process comes from the kernel, in hundredths of a second, of
# which half a one is taken off: it is as often too much as too little.
_PROGRAM = """
    import time; line = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
    import json, os, sys
    loaded = "{library}" in sys.modules
    import {library}
    imported = time.time()
    ticks = int(open("/proc/self/stat").read().rpartition(")")[2].split()[19])
    start = (ticks + 0.5) / os.sysconf("SC_CLK_TCK")
    found = dict(line=line[0], age=line[1] - start, imported=imported, loaded=loaded)
    with open(sys.argv[-1] + "/found.json", "w") as file:
        json.dump(found, file)
"""


@dataclass(frozen=True)
class Start:
    """Seconds until the first line, until the library was imported, and from the process's start to the line.

    `loaded`: the process had the library already.
    """

    line: float
    imported: float
    age: float
    loaded: bool


def main() -> int:
    """Measure and print."""
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else _JOBS
    exit_on_sigterm()
    rows: list[tuple[str, Sequence[Start]]] = []
    with tempfile.TemporaryDirectory(prefix="pilotlight-bench-") as name:
        folder = Path(name)
        for library, title in (("sklearn", "scikit-learn"), ("tensorflow", "TensorFlow")):
            if find_spec(library) is None:
                continue
            work = folder / library
            wheel = write_wheel(work, library)
            rows.append((f"`python -m`, {title}", [run_by_hand(work / str(n), wheel) for n in range(jobs)]))
            with run_server(work / "state") as server:
                rows.append((f"a job, {title}", measure_jobs(server, work, wheel, jobs)))
        rows.append(
            ("a job, new packages, cold", [measure_new(folder / f"new{n}") for n in range(_NEW_JOBS)])
        )
    print(_format_rows(rows))
    return 0


def write_wheel(folder: Path, library: str) -> Path:
    """A wheel with the module trainer.task, which imports a library."""
    folder.mkdir(parents=True, exist_ok=True)
    wheel, info = folder / "trainer-0.1-py3-none-any.whl", "trainer-0.1.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("trainer/__init__.py", "")
        archive.writestr("trainer/task.py", dedent(_PROGRAM.format(library=library)).lstrip())
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: trainer\nVersion: 0.1\n")
        tags = "Wheel-Version: 1.0\nGenerator: bench\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{info}/WHEEL", tags)
        archive.writestr(f"{info}/RECORD", "")
    return wheel


@contextmanager
def run_server(state: Path, **variables: str) -> Iterator[ControlClient]:
    """A server without versions, from the moment at which it is ready."""
    port = find_free_port()
    command = [*PILOTLIGHT, "serve", "--port", str(port), "--state-dir", str(state)]
    environment = {"PILOTLIGHT_CACHE_DIR": str(state / "cache"), **variables}
    state.parent.mkdir(parents=True, exist_ok=True)
    with (
        state.with_suffix(".log").open("wb") as log,
        run_process(command, environment, log) as process,
    ):
        server = ControlClient(port)
        server.wait_until_ready(process.poll)
        yield server


def measure_jobs(server: ControlClient, folder: Path, wheel: Path, jobs: int) -> Sequence[Start]:
    """The starts of jobs, once one has filled the cache and its pilot is ready."""
    run_job(server, folder / "job", wheel, "first")
    _wait_until(lambda: all(one["state"] == "lit" for one in server.call_api("GET", "/nodes")["pilots"]))
    found = []
    for number in range(jobs):
        time.sleep(_PAUSE_SECONDS)
        found.append(run_job(server, folder / f"job{number}", wheel, f"job_{number}"))
    return found


def measure_new(folder: Path) -> Start:
    """The start of a job on a new server, which knows neither its packages nor has a pilot."""
    wheel = write_wheel(folder, "sklearn")
    with run_server(folder / "state", PILOTLIGHT_PILOTS="off") as server:
        return run_job(server, folder / "job", wheel, "new")


def run_job(server: ControlClient, job_dir: Path, wheel: Path, job_id: str) -> Start:
    """Run a job to its end. Raises SystemExit if it fails."""
    given = {
        "region": "us-central1",
        "packageUris": [str(wheel)],
        "pythonModule": "trainer.task",
        "jobDir": str(job_dir),
    }
    begin = time.time()
    server.call_api("POST", _PARENT, {"jobId": job_id, "trainingInput": given})
    job: Mapping[str, Any] = {}

    def has_ended() -> bool:
        nonlocal job
        job = server.call_api("GET", f"{_PARENT}/{job_id}")
        return job["state"] in _ENDS

    _wait_until(has_ended)
    if job["state"] != "SUCCEEDED":
        raise SystemExit(f"the job did not succeed: {job}")
    return _read_start(job_dir, begin)


def run_by_hand(job_dir: Path, wheel: Path) -> Start:
    """Run the program as a process of Python, with a wheel that needs not be unpacked."""
    job_dir.mkdir()
    begin = time.time()
    command = [sys.executable, "-m", "trainer.task", "--job-dir", str(job_dir)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(wheel)})
    return _read_start(job_dir, begin)


def _read_start(job_dir: Path, begin: float) -> Start:
    found = json.loads((job_dir / "found.json").read_text())
    return Start(found["line"] - begin, found["imported"] - begin, found["age"], found["loaded"])


def _wait_until(reached: Callable[[], bool]) -> None:
    end = time.monotonic() + _END_SECONDS
    while not reached():
        if time.monotonic() > end:
            raise SystemExit("it took too long")
        time.sleep(0.02)


def _format_rows(rows: Sequence[tuple[str, Sequence[Start]]]) -> str:
    head = ["", "first line", "library imported", "of a process that is so old", "forked"]
    body = [
        [
            title,
            _format_times([start.line for start in starts]),
            _format_times([start.imported for start in starts]),
            _format_times([start.age for start in starts]),
            f"{sum(start.loaded for start in starts)} of {len(starts)}",
        ]
        for title, starts in rows
    ]
    return format_table(head, body)


def _format_times(seconds: Sequence[float]) -> str:
    """In milliseconds."""
    low, middle, high = (round(one * 1000) for one in (min(seconds), median(seconds), max(seconds)))
    return f"{middle} ms ({low} to {high})"


if __name__ == "__main__":
    sys.exit(main())
