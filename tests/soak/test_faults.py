"""Random faults under load: what the promises cover is never lost, and nothing grows."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
import pytest

from loadtests.bench.targets.servers import find_free_port
from tests.bounds import HANG_SECONDS
from tests.conftest import Report
from tests.end_to_end import jobs, models
from tests.load import Client, drive
from tests.server import until
from tests.soak.conftest import Progress
from tests.soak.faults import FAULTS, LASTING, POISONED, Site, opened, own_name, sweep_folders
from tests.soak.judging import End, Exit, Fault, Probe, Record, Usage, judge, table
from tests.soak.load import PROJECT, Load, Version, deploy
from tests.soak.mixed import folders, uids

pytestmark = pytest.mark.alone

RATE = 200.0
PROBE_EVERY, USAGE_EVERY, TELL_EVERY = 0.2, 0.5, 60.0
# A probe that takes longer has failed, as probes do.
PROBE_SECONDS = 1.0
# Seconds without faults at the beginning, and at the end for what is to recover.
CALM = 5.0
# Seconds until a server that has ended at its start is started again, as init systems do.
START_PAUSE = 1.0
FLAGS = (
    *("--default-project", "soak"),
    *("--idle-timeout", "4", "--request-timeout", "20", "--jobs", "1", "--node-memory-bytes", f"{1 << 30}"),
    *("--call-timeout", "10"),
    *("--header-timeout", "2", "--body-timeout", "4", "--answer-timeout", "5"),
)


@dataclass(frozen=True)
class Size:
    """Seconds in all, seconds between two faults and of one, at most; between two kills of the server.

    `rude` is how many slow clients there are, and idle ones, and costly ones; a server's memory has its size
    after `warm_up` seconds.
    """

    seconds: float
    pause: float
    fault: float
    server: float
    rude: int
    warm_up: float


SHORT = Size(seconds=30, pause=1.5, fault=3, server=15, rude=20, warm_up=5)
LONG = Size(
    seconds=float(os.environ.get("TESTS_SOAK_SECONDS", "3600")),
    pause=5, fault=8, server=600, rude=100, warm_up=120,
)  # fmt: skip


def plan(seed: int, size: Size) -> Iterator[Fault]:
    """Which faults begin when, and how long they last: the same ones for the same seed."""
    chance = random.Random(f"{seed} faults")
    until = dict.fromkeys(sorted(FAULTS), 0.0)
    start = CALM
    while start < size.seconds - CALM:
        kind = chance.choice([kind for kind, end in until.items() if end <= start])
        until[kind] = start + (chance.uniform(0.5, size.fault) if kind in LASTING else 0.0)
        yield Fault(kind, start, until[kind])
        start += chance.uniform(0, size.pause)


@dataclass
class Run:
    """One run, and what was seen so far."""

    site: Site
    size: Size
    load: Load
    tell: Progress
    probes: list[Probe] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    exits: list[Exit] = field(default_factory=list)
    usages: list[Usage] = field(default_factory=list)
    under_way: set[str] = field(default_factory=set)
    submitted: list[str] = field(default_factory=list)

    def now(self) -> float:
        """Seconds since the beginning."""
        return self.load.now()

    async def run(self) -> None:
        """Load, faults and looks, until the time is over; the load ends last."""
        loading = asyncio.create_task(self.load.run())
        looking = [
            asyncio.create_task(look())
            for look in (self._probe, self._measure, self._submit_jobs, self._tell)
        ]
        async with asyncio.TaskGroup() as group:
            group.create_task(self._kill_servers())
            group.create_task(self._make_faults(group))
        await asyncio.sleep(CALM)
        self.load.over = True
        await loading
        for task in looking:
            task.cancel()
        await asyncio.gather(*looking, return_exceptions=True)

    # ---- faults

    async def _make_faults(self, group: asyncio.TaskGroup) -> None:
        for planned in plan(self.site.seed, self.size):
            await asyncio.sleep(planned.start - self.now())
            if planned.kind not in self.under_way:  # it may take longer than was planned
                group.create_task(self._suffer(planned.kind, planned.end - planned.start))

    async def _suffer(self, kind: str, seconds: float) -> None:
        self.under_way.add(kind)
        start = self.now()
        with FAULTS[kind](self.site) as happened:
            await asyncio.sleep(seconds)
        if happened:
            self.faults.append(Fault(kind, start, self.now()))
        self.under_way.discard(kind)

    async def _kill_servers(self) -> None:
        """Kill the server's own process and start another, as an init system does."""
        while self.now() + self.size.server < self.size.seconds - CALM:
            await asyncio.sleep(self.size.server)
            start = self.now()
            self.site.server.kill()
            started = await self._start_server()
            self.faults.append(Fault("server killed", start, started))
            self.faults.append(Fault("server starting", started, self.now()))

    async def _start_server(self) -> float:
        """Start a server, and again after a pause if it ends before it is ready; when the last one began."""
        while True:
            start, logged = self.now(), len(self.site.log().encode())
            status = await asyncio.to_thread(self.site.start_again)
            if status is None:
                return self.site.started - self.load.begun
            self.exits.append(Exit(start, self.now(), status, self.site.log(logged)))
            await asyncio.sleep(START_PAUSE)

    # ---- looks

    async def _probe(self) -> None:
        async with httpx.AsyncClient(timeout=PROBE_SECONDS) as client:
            while True:
                at, ready = self.now(), False
                with suppress(httpx.TransportError):
                    ready = (await client.get(f"{self.site.server.url}/readyz")).status_code == 200
                self.probes.append(Probe(at, ready))
                await asyncio.sleep(PROBE_EVERY)

    async def _measure(self) -> None:
        while True:
            with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                process = psutil.Process(self.site.server.process.pid)
                with process.oneshot():
                    memory, threads = process.memory_info().rss, process.num_threads()
                files = process.num_fds() - len(process.net_connections("tcp"))
                self.usages.append(Usage(self.now(), self.site.lives, memory, files, threads))
            await asyncio.sleep(USAGE_EVERY)

    async def _submit_jobs(self) -> None:
        """There is always a job, so that there are processes of one to be killed."""
        number = 0
        async with httpx.AsyncClient(timeout=10) as client:
            while True:
                number += 1
                job = jobs.job(
                    f"job_{number}", f"{self.site.root}/in/*", self.site.root / "out" / f"{number}",
                    versionName=f"{PROJECT}/models/forest/versions/v1",
                )  # fmt: skip
                with suppress(httpx.TransportError):
                    reply = await client.post(f"{self.site.server.url}/v1/{PROJECT}/jobs", json=job)
                    self.submitted += [f"{PROJECT}/jobs/job_{number}"] if reply.status_code == 200 else []
                await asyncio.sleep(self.size.pause * 8)

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(TELL_EVERY)
            failed = sum(one.failed for one in self.load.asked)
            self.tell(
                f"{self.now():.0f} of {self.size.seconds:.0f} s: {len(self.load.asked)} requests, "
                f"{failed} failed, "
                f"{len(self.faults)} faults, server {self.site.lives} has {self.usages[-1].memory >> 20} MiB"
            )


@pytest.mark.parametrize(
    "size",
    [
        pytest.param(SHORT, marks=pytest.mark.timeout(300)),
        pytest.param(LONG, marks=[pytest.mark.soak, pytest.mark.timeout(int(LONG.seconds) + 900)]),
    ],
    ids=["short", "long"],
)
def test_nothing_is_lost_to_random_faults(
    tmp_path: Path, report: Report, progress: Progress, size: Size
) -> None:
    """Good clients are served beside rude ones, whatever happens to the server and to what is below it."""
    seed = int(os.environ.get("TESTS_SOAK_SEED") or random.randrange(1 << 32))
    print(f"seed {seed}")
    sweep_folders("soak")
    with (
        tempfile.TemporaryDirectory(prefix=own_name("soak")) as temporary,
        opened(tmp_path, Path(temporary), seed, "--port", str(find_free_port()), *FLAGS) as site,
    ):
        versions = deploy(site.server, tmp_path)
        log_requests(site, "forest", tmp_path / "logged")
        jobs.write_lines(tmp_path / "in" / "rows.jsonl", models.data()[0].tolist() * 50)
        with rude_clients(site, size):
            run: Run = drive(started(site, size, versions, progress))
        assert site.server.process.poll() is None, f"the server ended by itself: {site.log()[-2000:]}"
        for name in run.submitted:
            jobs.finished(site.server, name)
        # Whatever the server went through, it still takes changes.
        site.server.delete(POISONED)
        site.server.create_version(POISONED, deploymentUri=str(tmp_path / "forest"))
        end = ended(site, Path(temporary))
    record = Record(run.load.asked, run.probes, run.faults, run.usages, end, size.warm_up, run.exits)
    for fault in record.faults:
        print(f"{fault.start:8.2f} to {fault.end:.2f} s: {fault.kind}")
    report(f"seed {seed}; left out: {'; '.join(site.missing) or 'nothing'}")
    for line in table(record):
        report(line)
    wrong = judge(record)
    for line in wrong:
        progress(line)  # at once: who ends the other long tests early still gets to see it
    assert not wrong, "\n".join(wrong)


async def started(site: Site, size: Size, versions: list[Version], progress: Progress) -> Run:
    """The run, once it is over."""
    client = Client(site.server.url, "", timeout=30, keep=64)
    run = Run(site, size, Load(client, versions, RATE, time.monotonic()), progress)
    await run.run()
    client.close()
    return run


def log_requests(site: Site, name: str, folder: Path) -> None:
    """Have some requests of a version logged, so that there is a process that writes them."""
    folder.mkdir()
    version = f"{PROJECT}/models/{name}/versions/v1"
    config = {"bigqueryTableName": str(folder), "samplingPercentage": 0.1}
    reply = site.server.call(
        "PATCH", f"{version}?updateMask=requestLoggingConfig", json={"requestLoggingConfig": config}
    )
    assert reply.status == 200, reply.json


@contextmanager
def rude_clients(site: Site, size: Size) -> Iterator[None]:
    """Idle, slow, half, vanishing and nonsensical clients, for the time of the block."""
    host, _, port = site.server.url.removeprefix("http://").partition(":")
    name = f"{PROJECT}/models/routine/versions/v1"
    each = str(size.rude)
    crowd = (*(host, port), str(size.seconds * 2), *(each, each, each), name)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.soak.crowd", *crowd], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        yield
        assert process.poll() is None, "the rude clients are gone"
    finally:
        process.kill()
        process.communicate()


def ended(site: Site, temporary: Path) -> End:
    """End the server the orderly way, and see what is left."""
    with suppress(AssertionError):
        until(lambda: not set(unexplained(site.state)), "the catalog explains all files")
    files = [*unexplained(site.state)]
    start = time.monotonic()
    site.server.process.terminate()
    code = site.server.process.wait(timeout=HANG_SECONDS)
    seconds = time.monotonic() - start
    with suppress(AssertionError):
        site.server.wait_for_end()
    files += [str(file) for file in temporary.iterdir()]
    return End(seconds, code, tuple(site.server.processes().values()), tuple(files))


def unexplained(state: Path) -> Iterator[str]:
    """Files of the state folder that belong to nothing."""
    # SQLite follows links, and would leave the file system that only the server sees.
    with tempfile.TemporaryDirectory(prefix="catalog-") as copied:
        for file in state.glob("state.db*"):
            shutil.copy(file, copied)
        known = {kind: uids(Path(copied), kind) for kind in ("versions", "jobs")}
    for kind, explained in known.items():
        yield from (f"{kind}/{name}" for name in folders(state / kind) - explained)
    for name in (".partial", ".locks"):
        yield from (f"cache/{name}/{file}" for file in folders(state / "cache" / name))
