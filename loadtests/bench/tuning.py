"""What a tuning job costs beside its trials: suggestions, commits, starts and ends of processes.

    python -m loadtests.bench.tuning [TRIALS ...] [--algorithm RANDOM_SEARCH] [--parallel 4]

For each number of trials a server is started anew, and a job runs that many programs that only report a
value. Of the time from the job's RUNNING to its end that of the programs is taken off, which each measures
itself from its first line to its last; what is left, per trial, is the overhead.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtests.bench.targets.processes import run_group
from loadtests.bench.targets.servers import find_free_port

_PROGRAM = """
import time
begin = time.perf_counter()
import os, sys
import hypertune
rate = float(next(word for word in sys.argv if word.startswith("--rate=")).partition("=")[2])
hypertune.HyperTune().report_hyperparameter_tuning_metric("value", -(rate - 0.3) ** 2, 1)
with open(os.path.join(sys.argv[-1], "seconds"), "w") as file:
    file.write(str(time.perf_counter() - begin))
"""
_PROJECT = "projects/bench"
_START_SECONDS, _JOB_SECONDS = 60.0, 1800.0
_WHEEL_FILES = {
    "trainer/__init__.py": "",
    "trainer/task.py": _PROGRAM,
    "trainer-0.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: trainer\nVersion: 0.1\n",
    "trainer-0.1.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "trainer-0.1.dist-info/RECORD": "",
}


@dataclass(frozen=True)
class TuningPlan:
    trials: int
    parallel: int
    algorithm: str


@dataclass(frozen=True)
class TuningFigures:
    """Seconds: of the job from RUNNING on, of the programs together, and when each trial ended."""

    seconds: float
    own_seconds: float
    ends: Sequence[float]

    def compute_overhead(self, parallel: int) -> float:
        """Milliseconds of each trial beside its own time."""
        return 1000 * (self.seconds - self.own_seconds / parallel) / len(self.ends)

    def compute_intervals(self, count: int) -> tuple[float, float]:
        """Milliseconds from one end to the next, over the first `count` trials and over the last."""
        gaps = [1000 * (after - before) for before, after in zip(self.ends, self.ends[1:], strict=False)]
        return statistics.fmean(gaps[:count]), statistics.fmean(gaps[-count:])


def call(url: str, method: str = "GET", body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310  our own server
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
        return json.load(answer)


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + _START_SECONDS
    while True:
        with contextlib.suppress(OSError):
            if is_so():
                return
        if time.monotonic() > end:
            raise SystemExit(f"after {_START_SECONDS:g} s still not: {what}")
        time.sleep(0.1)


def is_pilot_ready(url: str) -> bool:
    return any(pilot["state"] == "lit" for pilot in call(f"{url}/nodes")["pilots"])


def write_wheel(folder: Path) -> Path:
    wheel = folder / "trainer-0.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in _WHEEL_FILES.items():
            archive.writestr(name, text)
    return wheel


def run_job(url: str, folder: Path, name: str, plan: TuningPlan) -> TuningFigures:
    """Run one job on a server, and measure it."""
    job_dir = folder / name
    spec = {
        "hyperparameterMetricTag": "value",
        "maxTrials": plan.trials,
        "maxParallelTrials": plan.parallel,
        "algorithm": plan.algorithm,
        "params": [{"parameterName": "rate", "type": "DOUBLE", "minValue": 0, "maxValue": 1}],
    }
    given = {
        "region": "us-central1",
        "packageUris": [str(folder / "trainer-0.1-py3-none-any.whl")],
        "pythonModule": "trainer.task",
        "jobDir": str(job_dir),
        "hyperparameters": spec,
    }
    call(f"{url}/v1/{_PROJECT}/jobs", "POST", {"jobId": name, "trainingInput": given})
    begin = wait_for_state(url, name, "RUNNING")
    end = wait_for_state(url, name, "SUCCEEDED")
    files = sorted(job_dir.glob("*/seconds"), key=lambda file: file.stat().st_mtime)
    if len(files) != plan.trials:
        raise SystemExit(f"{len(files)} of {plan.trials} trials have run")
    own = sum(float(file.read_text()) for file in files)
    return TuningFigures(end - begin, own, [file.stat().st_mtime for file in files])


def wait_for_state(url: str, name: str, state: str) -> float:
    """The time at which it is seen."""
    end = time.monotonic() + _JOB_SECONDS
    while time.monotonic() < end:
        found = call(f"{url}/jobs/{_PROJECT}/jobs/{name}")["state"]
        if found in (state, "SUCCEEDED"):
            return time.monotonic()
        if found in ("FAILED", "CANCELLED"):
            raise SystemExit(json.dumps(call(f"{url}/v1/{_PROJECT}/jobs/{name}"), indent=2)[:4000])
        time.sleep(0.1)
    raise SystemExit(f"{name} is not {state} after {_JOB_SECONDS:g} s")


def measure(plan: TuningPlan) -> TuningFigures:
    """Run a job on a server of its own, after a first one that warms it up."""
    with tempfile.TemporaryDirectory(prefix="pilotlight-bench-") as temporary:
        folder = Path(temporary)
        write_wheel(folder)
        port = find_free_port()
        command = [str(Path(sys.executable).parent / "pilotlight"), "serve", "--port", str(port)]
        command += ["--state-dir", str(folder / "state")]
        with run_group(command, {}, None, folder / "log"):
            url = f"http://127.0.0.1:{port}"
            wait_until(lambda: bool(call(f"{url}/readyz")), "the server is ready")
            run_job(url, folder, "warm_up", TuningPlan(4, plan.parallel, plan.algorithm))
            wait_until(lambda: is_pilot_ready(url), "the pilot is ready that jobs are forked from")
            return run_job(url, folder, "measured", plan)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what a tuning job costs beside its trials.")
    parser.add_argument("trials", nargs="*", type=int, default=[100, 1000], help="100 1000 by default")
    parser.add_argument("--algorithm", default="ALGORITHM_UNSPECIFIED")
    parser.add_argument("--parallel", type=int, default=4)
    arguments = parser.parse_args()
    print(f"{arguments.algorithm}, {arguments.parallel} at a time; milliseconds per trial")
    print(f"{'trials':>8} {'seconds':>9} {'overhead':>9} {'first 100':>10} {'last 100':>9}")
    for trials in arguments.trials:
        figures = measure(TuningPlan(trials, arguments.parallel, arguments.algorithm))
        first, last = figures.compute_intervals(min(100, trials - 1))
        overhead = figures.compute_overhead(arguments.parallel)
        print(f"{trials:>8} {figures.seconds:>9.2f} {overhead:>9.1f} {first:>10.1f} {last:>9.1f}", flush=True)


if __name__ == "__main__":
    main()
