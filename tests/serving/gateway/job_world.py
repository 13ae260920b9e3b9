"""A catalog on disk and the jobs at work on it; their processes do what a test says."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from autoscaler.child_launcher import module_command
from autoscaler.pools import PilotSpec
from autoscaler.supervision import Supervisor
from batch.messages import JobRequest
from serving.config import ServeConfig
from serving.errors import Unavailable
from serving.gateway.catalog import Catalog, versions
from serving.gateway.catalog import jobs as rules
from serving.gateway.jobs.job_queue import JobQueue, JobTiming
from serving.gateway.jobs.kinds.prediction.prediction_kind import PredictionKind
from serving.gateway.state.catalog_state import Commit
from serving.gateway.state.records import DeploymentInfo, JobRecord
from serving.gateway.state.store import SqliteStore
from serving.names import ModelName, VersionName
from serving.resources import Job, JobState, Operation, Version, resource_from_json
from tests.bounds import HANG_SECONDS
from tests.serving.gateway.world import FakePool

FAKE = module_command("tests.serving.gateway.fake_job")
PACE = JobTiming(
    silence_seconds=60.0, retry_delays=(0.01,), save_interval=0.0, error_delays=(0.01, 0.02, 0.05)
)
M, V1 = ModelName("p", "m"), VersionName("p", "m", "v1")


class Disk(SqliteStore):
    """A store that is full when a test says so."""

    full = False

    def commit(self, changes: Mapping[tuple[str, str], Any]) -> None:
        if self.full:
            raise Unavailable("The state file cannot be written: database or disk is full.")
        super().commit(changes)


class NoOperations:
    """Predictions become no versions."""

    async def check_sources(self, version: Version) -> None:
        raise AssertionError(version)

    def begin(self, operation: Operation) -> None:
        raise AssertionError(operation)


class World:
    """A catalog on disk and the jobs at work on it, as a server has them from its start to its stop."""

    def __init__(
        self, folder: Path, command: tuple[str, ...] = FAKE, pace: JobTiming = PACE, **settings: Any
    ):
        self.folder = folder
        (folder / "state").mkdir(exist_ok=True)
        self.disk = Disk(folder / "state" / "state.db")
        self.catalog = Catalog(self.disk, self._published)
        self.supervisor = Supervisor()
        self.seen: list[tuple[str, JobState | None]] = []
        self.config = ServeConfig(state_dir=folder / "state", **settings)
        self.kind = PredictionKind(
            self.config, dict(os.environ), lambda _: PilotSpec("", (), {}), command, grace_seconds=2.0
        )
        self.jobs: JobQueue = JobQueue(
            self.catalog,
            self.supervisor,
            [self.kind],
            NoOperations(),
            folder / "state" / "jobs",
            pool=FakePool(lambda _: None),
            timing=pace,
        )

    def _published(self, commit: Commit) -> None:
        self.jobs.fail_jobs_missing_version(commit.after)
        for record in commit.after.jobs.values():
            if (record.job.job_id, record.job.state) not in self.seen:
                self.seen.append((record.job.job_id, record.job.state))

    async def open(self) -> None:
        await self.catalog.open()
        await self.supervisor.__aenter__()
        self.jobs.remove_stale_files(self.catalog.state)
        self.jobs.resume()

    async def close(self) -> None:
        await self.jobs.suspend()
        await self.supervisor.__aexit__(None, None, None)
        self.catalog.close()

    async def version(self, name: str) -> None:
        """A READY version of the model."""
        version = Version(name=name, deployment_uri="gs://b/m", prediction_class="x.Y", package_uris=("p",))
        operation = await self.catalog.change(versions.create_version, M, version)
        deployed = DeploymentInfo(model_dir="/models/v1", packages=("/packages",), framework="CUSTOM")
        await self.catalog.change(versions.complete_create, operation.name, deployed, ())

    async def submit(self, job: str, *script: str, options: Any = None, **changes: Any) -> None:
        """A job whose process does what the script says; its output folder has its name."""
        given = {
            "uri": "/model", "dataFormat": "JSON", "inputPaths": [f"/{step}" for step in script] or ["/run"],
            "outputPath": str(self.out(job)), "region": "r", **changes,
        }  # fmt: skip
        given = {key: value for key, value in given.items() if value is not None}
        self.out(job).mkdir(parents=True, exist_ok=True)
        wire = {"jobId": job, "predictionInput": given, "batchOptions": options}
        sent = rules.SentJobFields(given, options or {})
        await self.catalog.change(
            rules.create_job, self.kind, "p", resource_from_json(Job, wire), sent=sent, most=100
        )
        self.jobs.start_due_jobs()

    def out(self, job: str) -> Path:
        return self.folder / "out" / job

    def record(self, job: str) -> JobRecord:
        return self.catalog.state.jobs[rules.job_name("p", job)]

    def state(self, job: str) -> JobState | None:
        return self.record(job).job.state

    def message(self, job: str) -> str:
        return self.record(job).job.error_message

    def counts(self, job: str) -> tuple[str, str]:
        output = self.jobs.with_current_output(self.record(job)).job.prediction_output
        assert output is not None
        return output.prediction_count, output.error_count

    def notes(self, job: str) -> list[str]:
        """What the server itself has written into the log of a job."""
        lines = self.jobs.job_log(self.record(job)).read_text().splitlines()
        return [text for line in lines if (text := line.partition(" SERVER ")[2])]

    async def cancel(self, job: str) -> None:
        await self.jobs.cancel(rules.job_name("p", job))

    def started(self, job: str, attempt: int = 1) -> Path:
        return self.out(job) / f"started.{attempt}"

    async def until_started(self, job: str, attempt: int = 1) -> int:
        """The pid of an attempt once it is at work."""
        await self.until(self.started(job, attempt).exists)
        return int(self.started(job, attempt).read_text())

    async def until_ended(self, job: str) -> JobState | None:
        await self.until(lambda: self.record(job).has_ended)
        return self.state(job)

    async def until(self, reached: Callable[[], bool]) -> None:
        while not reached():  # noqa: ASYNC110  other processes take part: there is no event for it
            await asyncio.sleep(0.005)

    def request(self, job: str, attempt: int = 1) -> JobRequest:
        return msgspec.json.decode((self.out(job) / f"request.{attempt}").read_bytes(), type=JobRequest)

    def attempts(self, job: str) -> int:
        assert not (self.out(job) / "overlap").exists()
        return len(list(self.out(job).glob("request.*")))

    def cleaned(self, job: str) -> bool:
        return (self.out(job) / "cleaned").exists()


def run(*mains: Callable[[World], Awaitable[None]], folder: Path, **details: Any) -> None:
    """Each on a server of its own, started on what the one before has left."""

    async def bounded() -> None:
        async with asyncio.timeout(HANG_SECONDS):
            for main in mains:
                world = World(folder, **details)
                await world.open()
                try:
                    await main(world)
                finally:
                    await world.close()

    asyncio.run(bounded())


def alive(pid: int) -> bool:
    """Whether a process works; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
