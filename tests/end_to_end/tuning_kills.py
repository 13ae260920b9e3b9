"""Kills a server at random moments of a tuning job, and looks for lost, repeated and changed trials."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.end_to_end.jobs import finished, submit
from tests.end_to_end.training_jobs import PARENT, training_job, write_wheel
from tests.server import Server, running_server

PROGRAM = """
    import os, sys, time, hypertune

    folder = sys.argv[sys.argv.index("--job-dir") + 1]
    with open(os.path.join(folder, "runs"), "a") as runs:
        runs.write(" ".join(sys.argv[1:]) + "\\n")
    for step in range(3):
        hypertune.HyperTune().report_hyperparameter_tuning_metric("value", step, step)
        time.sleep(0.05)
"""
SEARCH: dict[str, Any] = {
    "hyperparameterMetricTag": "value",
    "maxParallelTrials": 4,
    "params": [
        {
            "parameterName": "rate",
            "type": "DOUBLE",
            "minValue": 0.1,
            "maxValue": 1,
            "scaleType": "UNIT_LOG_SCALE",
        },
        {"parameterName": "layers", "type": "INTEGER", "minValue": 1, "maxValue": 50},
    ],
}


@dataclass
class KilledSearch:
    """What was seen of the trials: by number their parameters, and of completed ones how often they ran."""

    folder: Path
    parameters: dict[int, Any] = field(default_factory=dict)
    completed: dict[int, dict[str, Any]] = field(default_factory=dict)
    runs: dict[int, int] = field(default_factory=dict)

    def observe(self, server: Server) -> None:
        """Raises AssertionError if what was seen before has changed."""
        found = server.call("GET", f"{PARENT}/locations/us-central1/studies/killed/trials").json
        for trial in found.get("trials", ()):
            number = int(trial["name"].rpartition("/")[2])
            assert self.parameters.setdefault(number, trial["parameters"]) == trial["parameters"]
            if trial["state"] == "COMPLETED":
                assert self.completed.setdefault(number, trial) == trial
                self.runs.setdefault(number, self._count_runs(number))
        for number, runs in self.runs.items():
            assert self._count_runs(number) == runs, f"trial {number} ran again after its end"

    def _count_runs(self, number: int) -> int:
        lines = (self.folder / str(number) / "runs").read_text().splitlines()
        assert len(set(lines)) == 1, f"trial {number} ran with other arguments: {lines}"
        return len(lines)


def kill_servers(folder: Path, kills: int, trials: int = 50) -> KilledSearch:
    """Run a job over as many servers as it takes; all but the last are killed."""
    wheel, out = write_wheel(folder / "wheel", PROGRAM), folder / "out"
    body = training_job("killed", wheel, jobDir=str(out), hyperparameters={**SEARCH, "maxTrials": trials})
    search, rng = KilledSearch(out), random.Random(kills)
    for number in range(kills):
        with running_server(folder / "state") as server:
            if number == 0:
                submit(server, body)
            end = time.monotonic() + rng.uniform(0.2, 3.0)
            while time.monotonic() < end:
                search.observe(server)
                time.sleep(0.02)
            server.kill()
            server.wait_for_end()
    with running_server(folder / "state") as server:
        ended = finished(server, f"{PARENT}/jobs/killed")
        search.observe(server)
    assert ended["state"] == "SUCCEEDED", ended
    assert sorted(search.completed) == list(range(1, trials + 1))
    assert ended["trainingOutput"]["completedTrialCount"] == str(trials)
    return search
