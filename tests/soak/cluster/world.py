"""Several servers on one database that are disturbed in some way, and clients that go on meanwhile."""

from __future__ import annotations

import itertools
import math
import random
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import httpx

from loadtests.bench.targets.servers import find_free_port
from tests.end_to_end import jobs, models
from tests.end_to_end.training_jobs import training_job, write_wheel
from tests.end_to_end.tuning_kills import PROGRAM, SEARCH
from tests.server import Server, running_server, until
from tests.soak.cluster.histories import RegisterOperation, find_violation

PROJECT = "projects/cluster"
ASKED = f"{PROJECT}/models/asked/versions/v"
REGISTERS = tuple(f"{PROJECT}/models/register{number}" for number in range(4))
INITIAL = "begin"
RECORDS, TRIALS = 20, 8
_REVISION = "x-pilotlight-revision"
# Seconds in which the answer to a request may still fail after the server that had it was killed.
_AFTERMATH = 0.5
_BALANCER = """\
    defaults
        mode http
        retries 3
        timeout connect 2s
        timeout client 75s
        timeout server 75s
        option redispatch
    frontend api
        bind 127.0.0.1:{own}
        default_backend servers
    backend servers
        balance roundrobin
        option httpchk GET /readyz
        timeout check 5s
        default-server check inter 1s fall 3 rise 1
"""


@dataclass(frozen=True, slots=True)
class Size:
    """`pause` is that between kills, `down` how long a killed server stays away, both in seconds."""

    seconds: float
    pause: float
    down: float
    clients: int
    jobs: int
    versions: int
    tunings: int = 0


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """Where a server finds the database, its flags, and a command that runs it."""

    database: str
    flags: Sequence[str] = ()
    prefix: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FailedPrediction:
    start: float
    end: float
    reason: str


class World:
    """The servers, what was asked of them and what they answered. Times are those of the monotonic clock."""

    def __init__(
        self, folder: Path, places: Sequence[ServerPlace], seed: int, size: Size, stack: ExitStack
    ) -> None:
        self.size = size
        self.seed = seed
        self.folder = folder
        self.over = threading.Event()
        self.kills: list[float] = []
        self.history: dict[str, list[RegisterOperation]] = {name: [] for name in REGISTERS}
        self.failed: list[FailedPrediction] = []
        self.answers: Counter[str] = Counter()
        self.operations: list[str] = []
        self.versions: list[str] = []
        self.jobs: dict[str, Path] = {}
        self.tunings: list[str] = []
        self.wheel = write_wheel(folder / "wheel", PROGRAM)
        self.troubles: list[str] = []
        self._revision = 0
        self._lock = threading.Lock()
        self._stack = stack
        self._places = places
        self._ports = [find_free_port() for _ in places]
        self._servers: list[Server | None] = [None] * len(places)
        for number in range(len(places)):
            self._start(number)

    @property
    def servers(self) -> list[Server]:
        """Those that run."""
        return [server for server in self._servers if server is not None]

    @property
    def revision(self) -> int:
        """The newest one that any client was told."""
        return self._revision

    def note_revision(self, headers: Mapping[str, str]) -> None:
        with self._lock:
            self._revision = max(self._revision, int(headers.get(_REVISION, "0")))

    def start_balancer(self) -> str:
        """The address of an HAProxy before all servers."""
        own, file = find_free_port(), self.folder / "haproxy.cfg"
        lines = [f"    server s{number} 127.0.0.1:{port}\n" for number, port in enumerate(self._ports)]
        file.write_text(dedent(_BALANCER).format(own=own) + "".join(lines))
        log = self._stack.enter_context((self.folder / "haproxy.log").open("wb"))
        process = subprocess.Popen(["haproxy", "-db", "-f", file], stdout=log, stderr=log)
        self._stack.callback(process.wait)
        self._stack.callback(process.terminate)
        url = f"http://127.0.0.1:{own}"

        def is_up() -> bool:
            assert process.poll() is None, (self.folder / "haproxy.log").read_text()
            with suppress(httpx.TransportError):
                return httpx.get(f"{url}/readyz").status_code == 200
            return False

        until(is_up, "HAProxy passes requests on")
        return url

    def kill_some(self, progress: Callable[[str], None]) -> None:
        """Kill a random server, start it again, and so on, until the time is over."""
        chance = random.Random(f"{self.seed} kills")
        end = time.monotonic() + self.size.seconds
        while time.monotonic() < end:
            time.sleep(self.size.pause - self.size.down)
            number = chance.randrange(len(self._places))
            server, self._servers[number] = self._servers[number], None
            assert server is not None
            self.kills.append(time.monotonic())
            server.kill()
            progress(f"{len(self.kills)} kills, {dict(self.answers)}")
            time.sleep(self.size.down)
            self._start(number)

    @contextmanager
    def run_clients(self, balancer: str = "") -> Iterator[None]:
        """Clients work until the end of the block."""
        with ThreadPoolExecutor(self.size.clients) as pool:
            clients = [Client(self, number, balancer) for number in range(self.size.clients)]
            working = [pool.submit(client.run) for client in clients]
            try:
                yield
            finally:
                self.over.set()
        for done in working:
            done.result()

    def _start(self, number: int) -> None:
        """All operations are kept: each change of a record is one, and all are looked at in the end."""
        place = self._places[number]
        self._servers[number] = self._stack.enter_context(
            running_server(
                self.folder / f"s{number}", "--port", str(self._ports[number]), "--jobs", "1",
                "--shared-versions-uri", str(self.folder / "shared"), "--operation-retention-count", "0",
                *place.flags,
                environment={"PILOTLIGHT_STATE": place.database},
                prefix=place.prefix,
            )
        )  # fmt: skip


@contextmanager
def open_world(folder: Path, places: Sequence[ServerPlace], seed: int, size: Size) -> Iterator[World]:
    """Servers and the records, of which one is a version that can be asked. The model is `folder`/forest."""
    models.write_sklearn(folder / "forest")
    jobs.write_lines(folder / "rows.jsonl", models.data()[0].tolist()[:RECORDS])
    with ExitStack() as stack:
        world = World(folder, places, seed, size, stack)
        for name in (*REGISTERS, ASKED.rpartition("/versions/")[0]):
            world.servers[0].create_model(name, description=INITIAL)
        world.servers[0].create_version(ASKED, deploymentUri=str(folder / "forest"))
        yield world


def has_balancer() -> bool:
    return shutil.which("haproxy") is not None


class Client:
    """Without a balancer it asks any server that runs, and another one if it cannot connect."""

    def __init__(self, world: World, number: int, balancer: str = "") -> None:
        self._world = world
        self._name = f"c{number}"
        self._balancer = balancer
        self._chance = random.Random(f"{world.seed} {self._name}")
        self._numbers = itertools.count()
        self._http = httpx.Client(timeout=60)
        self._etags: dict[str, tuple[str, str]] = {}  # by register: what it held, and its etag then
        self._rows: list[Any] = [[5.1, 3.5, 1.4, 0.2]]

    def run(self) -> None:
        actions: tuple[tuple[int, Callable[[], None]], ...] = (
            (6, self._read),
            (4, self._write),
            (4, self._write_on_condition),
            (20, self._predict),
            (1, self._create_version),
            (1, self._submit_job),
            (1, self._submit_tuning),
        )
        weights, does = zip(*actions, strict=True)
        try:
            while not self._world.over.is_set():
                self._chance.choices(does, weights)[0]()
        except Exception as error:
            self._world.troubles.append(f"{self._name} ended: {error!r}")
            raise
        finally:
            self._http.close()

    def _read(self) -> None:
        register, start = self._chance.choice(REGISTERS), time.monotonic()
        reply = self._send("GET", register, headers={_REVISION: str(self._world.revision)})
        if reply is None or reply.status_code == 503:
            return
        found = self._take(reply)
        self._etags[register] = found["description"], found["etag"]
        self._note(register, RegisterOperation(start, time.monotonic(), saw=found["description"]))

    def _write(self) -> None:
        register = self._chance.choice(REGISTERS)
        self._patch(register, {}, None)

    def _write_on_condition(self) -> None:
        register = self._chance.choice(REGISTERS)
        saw, etag = self._etags.get(register, (None, ""))
        if saw is not None:
            self._patch(register, {"etag": etag}, saw)

    def _patch(self, register: str, fields: Mapping[str, str], saw: str | None) -> None:
        text, start = f"{self._name} {next(self._numbers)}", time.monotonic()
        reply = self._send(
            "PATCH", f"{register}?updateMask=description", json={"description": text, **fields}
        )
        end = time.monotonic()
        if reply is None or reply.status_code == 503:
            end = math.inf  # it may have been done
        elif saw is not None and reply.status_code == 409:
            return
        else:
            self._take(reply)
        self._note(register, RegisterOperation(start, end, saw=saw, wrote=text))

    def _predict(self) -> None:
        start = time.monotonic()
        reply = self._send("POST", f"{ASKED}:predict", json={"instances": self._rows})
        if reply is not None and reply.status_code == 200 and len(reply.json()["predictions"]) == 1:
            return
        reason = "no answer" if reply is None else f"{reply.status_code}: {reply.text[:200]}"
        self._world.failed.append(FailedPrediction(start, time.monotonic(), reason))

    def _create_version(self) -> None:
        world = self._world
        if len(world.versions) >= world.size.versions:
            return
        name = f"{self._name}_{next(self._numbers)}"
        body = {"name": name, "deploymentUri": str(world.folder / "forest")}
        reply = self._send("POST", f"{PROJECT}/models/asked/versions", json=body)
        if reply is not None and reply.status_code == 200:
            world.versions.append(f"{PROJECT}/models/asked/versions/{name}")
            world.operations.append(reply.json()["name"])

    def _submit_job(self) -> None:
        world = self._world
        if len(world.jobs) >= world.size.jobs:
            return
        job_id = f"{self._name}_{next(self._numbers)}"
        output = world.folder / "out" / job_id
        body = jobs.job(job_id, str(world.folder / "rows.jsonl"), output, versionName=ASKED)
        reply = self._send("POST", f"{PROJECT}/jobs", json=body)
        if reply is not None and reply.status_code == 200:
            world.jobs[f"{PROJECT}/jobs/{job_id}"] = output

    def _submit_tuning(self) -> None:
        world = self._world
        if len(world.tunings) >= world.size.tunings:
            return
        job_id = f"tuning_{self._name}_{next(self._numbers)}"
        search = {**SEARCH, "maxTrials": TRIALS, "maxParallelTrials": 2}
        body = training_job(
            job_id, world.wheel, jobDir=str(world.folder / "out" / job_id), hyperparameters=search
        )
        reply = self._send("POST", f"{PROJECT}/jobs", json=body)
        if reply is not None and reply.status_code == 200:
            world.tunings.append(f"{PROJECT}/jobs/{job_id}")

    def _note(self, register: str, operation: RegisterOperation) -> None:
        self._world.history[register].append(operation)

    def _take(self, reply: httpx.Response) -> dict[str, Any]:
        assert reply.status_code == 200, f"{reply.request.method} {reply.url}: {reply.text}"
        found: dict[str, Any] = reply.json()
        return found

    def _send(self, method: str, path: str, **details: Any) -> httpx.Response | None:
        """None if no answer came."""
        while True:
            url = self._balancer or self._chance.choice(self._world.servers).url
            try:
                reply = self._http.request(method, f"{url}/v1/{path}", **details)
            except httpx.ConnectError:
                if self._balancer:
                    raise
                continue
            except httpx.TransportError:
                self._world.answers["none"] += 1
                return None
            self._world.answers[str(reply.status_code)] += 1
            self._world.note_revision(reply.headers)
            return None if reply.status_code in (502, 504) else reply


def list_violations(world: World) -> list[str]:
    """What must not be, once the killing is over: waits until operations and jobs have ended."""
    found = list(world.troubles)
    for register, history in world.history.items():
        if (operation := find_violation(history, INITIAL)) is not None:
            found.append(f"{register} has no order that explains {operation}")
    found += [
        f"a prediction failed, and no server was killed meanwhile: {one}"
        for one in world.failed
        if not any(one.start <= killed + _AFTERMATH and killed <= one.end for killed in world.kills)
    ]
    server = world.servers[0]
    operations = {name: server.wait(name) for name in world.operations}
    found += [f"{name} failed: {one['error']}" for name, one in operations.items() if "error" in one]
    states = {name: server.call("GET", name).json.get("state") for name in world.versions}
    found += [f"{name} is {state}" for name, state in states.items() if state != "READY"]
    for name, output in world.jobs.items():
        state = jobs.finished(server, name)["state"]
        if state != "SUCCEEDED" or len(jobs.results(output)) != RECORDS:
            found.append(f"{name} is {state}, its results {sorted(output.iterdir())}")
    for name in world.tunings:
        ended = jobs.finished(server, name)
        count = ended.get("trainingOutput", {}).get("completedTrialCount")
        if (ended["state"], count) != ("SUCCEEDED", str(TRIALS)):
            found.append(f"{name} is {ended['state']} with {count} trials: {ended.get('errorMessage')}")
    revision = {_REVISION: str(world.revision)}
    known = [
        [one.call("GET", name, headers=revision).json["description"] for name in REGISTERS]
        for one in world.servers
    ]
    if any(one != known[0] for one in known):
        found.append(f"servers know different values: {known}")
    return found
