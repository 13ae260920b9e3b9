"""A job of a few seconds on two workers, ways to kill what works on it, and what must be true afterwards.

Both the short and the long form of the test use it.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any, Literal

from tests.bounds import JOB_SECONDS
from tests.end_to_end import jobs, models
from tests.server import Server, running_server, until

VERSION = "projects/kills/models/slow/versions/v1"
Victim = Literal["worker", "process", "server"]
VICTIMS: tuple[Victim, ...] = ("worker", "process", "server")

# Five files of 1000 records of about 1 KiB: enough for two workers. Every 50th record is none.
_FILES, _RECORDS, _BAD_EVERY = 5, 1000, 50
_ROUTINE = dedent(
    '''
    import time

    class Routine:
        """Takes a little time, as real models do."""

        def predict(self, instances, **kwargs):
            time.sleep(0.04)
            return [2 * instance["number"] for instance in instances]

        @classmethod
        def from_path(cls, model_dir):
            return cls()
    '''
)


@dataclass
class Battle:
    """The server, which is started anew when it is killed, and the folder for everything."""

    root: Path
    flags: tuple[str, ...]
    environment: Mapping[str, str]
    good: int = 0
    bad: int = 0
    server: Server = field(init=False)
    stack: ExitStack = field(default_factory=ExitStack)

    def start(self) -> None:
        """Start a server on the state of the one before, if there was one."""
        self.server = self.stack.enter_context(
            running_server(self.root / "state", *self.flags, environment=self.environment)
        )

    def submit(self, job_id: str, output: Path | str) -> str:
        """Submit a job over all records."""
        given: dict[str, Any] = {"versionName": VERSION, "batchOptions": {"keys": ["id"]}}
        body = jobs.job(job_id, f"{self.root}/in/*", output, **given)
        return jobs.submit(self.server, body, "kills")

    def kill(self, victim: Victim) -> bool:
        """Kill what is there of the kind, with no chance to clean up; whether anything was."""
        if victim == "server":
            self.server.kill()
            self.start()
            return True
        found = jobs.processes(self.server)[victim]
        for pid in random.sample(found, min(1, len(found))):
            # It may have ended just now.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return True
        return False

    def wait_for_workers(self, name: str) -> None:
        """Wait until workers are at work on the job, or it has ended."""

        def at_work() -> bool:
            ended = jobs.get(self.server, name)["state"] in jobs.ENDS
            return ended or len(jobs.processes(self.server)["worker"]) == 2

        until(at_work, "workers are at work", seconds=JOB_SECONDS)

    def check(self, name: str, folder: Path, *, seconds: float = JOB_SECONDS) -> dict[str, Any]:
        """The job once it has ended: with exactly one prediction of each good record, or clearly failed.

        A job that writes to gs:// is given no folder it writes to, but where its objects can be looked at:
        see `jobs.download`.
        """
        job = jobs.finished(self.server, name, seconds=seconds)
        if job["state"] == "FAILED":
            assert job["errorMessage"]
            assert not [name for name in jobs.files(folder) if name.startswith("prediction.")]
        else:
            assert jobs.outcome(job) == ("SUCCEEDED", self.good, self.bad)
            check_results(folder, self.good, self.bad)
        jobs.check_nothing_is_left(self.server, folder)
        return job


def check_results(folder: Path, good: int, bad: int) -> None:
    """Each good record once, with its own prediction, and each bad one once."""
    found = jobs.results(folder)
    numbers = [number for number in range(good + bad) if number % _BAD_EVERY]
    assert Counter(row["id"] for row in found) == Counter(f"record {number}" for number in numbers)
    assert all(row["prediction"] == 2 * int(row["id"].split()[1]) for row in found)
    assert len(jobs.errors(folder)) == sum(jobs.stats(folder).values()) == bad


@contextmanager
def battle(root: Path, *flags: str, environment: Mapping[str, str] | None = None) -> Iterator[Battle]:
    """A server with the version, and the input of the jobs."""
    total = _FILES * _RECORDS
    bad = len(range(0, total, _BAD_EVERY))
    for start in range(0, total, _RECORDS):
        rows = [_record(number) for number in range(start, start + _RECORDS)]
        jobs.write_lines(root / "in" / f"{start}.jsonl", rows)
    packed = models.wheel(root, "slow", "0.1", {"slow.py": _ROUTINE})
    battle = Battle(root, flags, environment or {}, total - bad, bad)
    with battle.stack:
        battle.start()
        battle.server.create_model(VERSION.partition("/versions")[0])
        battle.server.create_version(VERSION, predictionClass="slow.Routine", packageUris=[str(packed)])
        yield battle
        assert battle.server.stop() == 0


def _record(number: int) -> dict[str, Any]:
    if number % _BAD_EVERY == 0:
        return {"no id": number, "pad": "x" * 1000}
    return {"id": f"record {number}", "number": number, "pad": "x" * 1000}
