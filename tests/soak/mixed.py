"""Mixed work of several clients on a server whose processes are killed, and what must be true afterwards.

Each client owns its models. Of each resource it keeps the set of states it may be in: one after an
acknowledged change, the old and the new one after a change whose answer was lost. Whatever contradicts that
is a violation.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx

from tests.end_to_end import jobs, models
from tests.server import Reply, Server, running_server, until

PROJECT = "projects/mixed"
ANCHOR = f"{PROJECT}/models/anchor/versions/v1"
Victim = Literal["server", "pilot", "node", "job"]
VICTIMS: tuple[Victim, ...] = ("server", "pilot", "node", "job")
RECORDS = 40
# The state of a resource: its description, None when it is not there.
State = str | None


@dataclass(frozen=True)
class Size:
    """How many kills there are, with pauses of up to `pause` seconds; clients, and jobs in all."""

    kills: int
    pause: float
    clients: int
    jobs: int
    seconds: float


@dataclass
class Job:
    """A job that was asked for: whether it is known to be there, and whether its end was asked for."""

    folder: Path
    known: bool = False
    cancelled: bool = False


@dataclass
class World:
    """The server, started anew when it is killed; what clients know; and what was wrong."""

    root: Path
    folder: Path
    seed: int
    size: Size
    rows: list[Any] = field(default_factory=list)
    wanted: list[Any] = field(default_factory=list)
    server: Server = field(init=False)
    stack: ExitStack = field(default_factory=ExitStack)
    over: threading.Event = field(default_factory=threading.Event)
    violations: list[str] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    killed: Counter[str] = field(default_factory=Counter)
    acknowledged: Counter[str] = field(default_factory=Counter)
    states: dict[str, set[State]] = field(default_factory=dict)
    operations: list[str] = field(default_factory=list)
    jobs: dict[str, Job] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        """Start a server on the state of the one before, if there was one."""
        self.server = self.stack.enter_context(
            running_server(
                self.root / "state", "--idle-timeout", "2", "--tick", "0.2", "--jobs", "1",
                environment={"TMPDIR": str(self.folder)},
            )
        )  # fmt: skip

    def violate(self, what: str) -> None:
        """Note what must not be."""
        self.violations.append(what)

    def take_job(self, job_id: str) -> Job | None:
        """A job to submit, if there may be one more."""
        with self.lock:
            if len(self.jobs) >= self.size.jobs:
                return None
            return self.jobs.setdefault(job_id, Job(self.root / "out" / job_id))

    # ---- killing

    def kill(self, victim: Victim) -> bool:
        """Kill one process of a kind, with no chance to clean up; whether there was one."""
        if victim == "server":
            self.server.kill()
            self.start()
            return True
        for pid in random.Random(f"{self.seed} {self.killed.total()}").sample(
            found := self.pids(victim), len(found)
        ):
            with suppress(ProcessLookupError):  # it has ended just now
                os.kill(pid, signal.SIGKILL)
                return True
        return False

    def pids(self, victim: Victim) -> list[int]:
        """The processes of a kind."""
        if victim == "job":
            return sorted(pid for found in jobs.processes(self.server).values() for pid in found)
        name = {"pilot": "pilot", "node": "pilotlight-node"}[victim]
        return sorted(pid for pid in self.server.processes() if _name(pid) == name)

    def kill_some(self) -> None:
        """Kill at random moments, until that was often enough."""
        chance = random.Random(f"{self.seed} kills")
        deadline = time.monotonic() + self.size.seconds
        while self.killed.total() < self.size.kills and time.monotonic() < deadline:
            time.sleep(chance.uniform(0, self.size.pause))  # that is the moment, not a wait
            # Jobs are not always there.
            victim: Victim = "job" if self.pids("job") and chance.random() < 0.15 else chance.choice(VICTIMS)
            self.killed[victim] += self.kill(victim)


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


class Client:
    """One client at work on its own models, with what it may rely on."""

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._chance = random.Random(f"{world.seed} client {number}")
        self._name = f"c{number}"
        self._http = httpx.Client(timeout=60)
        self._texts = 0
        self._ready: set[str] = set()

    def run(self) -> None:
        """Work until the killing is over."""
        actions: list[tuple[int, Callable[[], None]]] = [
            (2, self._create_model),
            (3, self._patch_model),
            (1, self._delete_model),
            (4, self._create_version),
            (4, self._patch_version),
            (2, self._delete_version),
            (12, self._predict),
            (2, self._submit),
            (1, self._cancel),
        ]
        weights, does = zip(*actions, strict=True)
        try:
            while not self._world.over.is_set():
                self._chance.choices(does, weights)[0]()
        except Exception as error:
            self._world.violate(f"{self._name} ended: {error!r}")
            raise
        finally:
            self._http.close()

    # ---- models

    def _create_model(self) -> None:
        name, text = self._model(), self._text()
        reply = self._call("POST", f"{PROJECT}/models", {"name": _last(name), "description": text})
        if self._made(name, reply, text):
            # Nothing lives on below a model that was not there.
            for version in self._versions(name):
                self._expect(version, None)
                self._states(version).intersection_update({None})

    def _patch_model(self) -> None:
        name, text = self._model(), self._text()
        reply = self._call("PATCH", f"{name}?updateMask=description", {"description": text})
        self._changed(name, reply, text)

    def _delete_model(self) -> None:
        name = self._model()
        reply = self._call("DELETE", name)
        if reply is not None and reply.status == 400:
            if all(self._states(version) == {None} for version in self._versions(name)):
                self._violate(f"{name} is said to have versions: {reply.json}")
            return
        self._gone(name, reply)

    # ---- versions

    def _create_version(self) -> None:
        name, text = self._version(), self._text()
        parent, _, _ = name.rpartition("/")
        body = {"name": _last(name), "description": text, "deploymentUri": str(self._world.root / "model")}
        reply = self._call("POST", parent, body)
        if reply is not None and reply.status == 404:
            self._no_model(name)
            return
        if self._made(name, reply, text) and reply is not None:
            self._world.operations.append(reply.json["name"])
        if self._chance.random() < 0.7:
            self._settle(name)

    def _patch_version(self) -> None:
        name, text = self._version(), self._text()
        reply = self._call("PATCH", f"{name}?updateMask=description", {"description": text})
        if reply is None or reply.status != 400:  # it was being made or deleted
            self._changed(name, reply, text)

    def _delete_version(self) -> None:
        name = self._version()
        self._ready.discard(name)
        reply = self._call("DELETE", name)
        if reply is None or reply.status != 400:  # being made or deleted, or the default one
            self._gone(name, reply)
            self._settle(name)

    def _predict(self) -> None:
        name = self._chance.choice([self._version(), ANCHOR])
        reply = self._call("POST", f"{name}:predict", {"instances": self._world.rows})
        if reply is None:
            return
        if reply.status == 200:
            if reply.json != {"predictions": self._world.wanted}:
                self._violate(f"{name} answered {reply.json}")
        elif reply.status == 404:
            self._expect(name, None, f"{name} is not there to predict")
        elif reply.status == 400 and name in self._ready | {ANCHOR}:
            self._violate(f"{name} was ready, and then: {reply.json}")

    def _settle(self, name: str) -> None:
        """Wait until no operation works on a version, and see whether it is as it may be."""
        while not self._world.over.is_set():
            reply = self._call("GET", name)
            if reply is None:
                continue
            if reply.status == 404:
                self._expect(name, None)
                self._world.states[name] = {None}
                return
            if reply.json["state"] in ("READY", "FAILED"):
                self._expect(name, reply.json["description"])
                self._world.states[name] = {reply.json["description"]}
                if reply.json["state"] == "READY":
                    self._ready.add(name)
                return
            time.sleep(0.05)

    # ---- jobs

    def _submit(self) -> None:
        job_id = f"{self._name}_{self._text()}"
        job = self._world.take_job(job_id)
        if job is None:
            return
        body = jobs.job(job_id, f"{self._world.root}/in/*", job.folder, versionName=ANCHOR)
        while not job.known and not self._world.over.is_set():
            reply = self._call("POST", f"{PROJECT}/jobs", body)
            job.known = reply is not None
            if reply is not None and reply.status not in (200, 409):
                self._violate(f"{job_id} was refused: {reply.json}")

    def _cancel(self) -> None:
        # Most jobs are let go on.
        own = [name for name in self._world.jobs if name.startswith(f"{self._name}_")][::3]
        if not own or self._chance.random() < 0.8:
            return
        job_id = self._chance.choice(own)
        job = self._world.jobs[job_id]
        job.cancelled = True
        reply = self._call("POST", f"{PROJECT}/jobs/{job_id}:cancel", {})
        if reply is not None and reply.status == 404 and job.known:
            self._violate(f"{job_id} is lost")

    # ---- what follows from answers

    def _made(self, name: str, reply: Reply | None, text: str) -> bool:
        """A creation was answered, or not; whether it has certainly made something."""
        states = self._states(name)
        if reply is None:
            if None in states:
                states.add(text)
            return False
        if reply.status == 200:
            self._expect(name, None)
            self._world.states[name] = {text}
            return True
        if reply.status != 409 or states == {None}:
            self._violate(f"{name} cannot be made: {reply.json}; known: {states}")
        states.discard(None)
        return False

    def _changed(self, name: str, reply: Reply | None, text: str) -> None:
        states = self._states(name)
        if reply is None:
            if states != {None}:
                states.add(text)
        elif reply.status == 404:
            self._expect(name, None)
            self._world.states[name] = {None}
        elif reply.status != 200 or states == {None}:
            self._violate(f"{name} cannot be changed: {reply.json}; known: {states}")
        else:
            self._world.states[name] = {text}

    def _gone(self, name: str, reply: Reply | None) -> None:
        states = self._states(name)
        if reply is None:
            states.add(None)
            return
        if reply.status == 404:
            self._expect(name, None)
        elif reply.status != 200 or states == {None}:
            self._violate(f"{name} cannot be deleted: {reply.json}; known: {states}")
        self._world.states[name] = {None}

    def _no_model(self, version: str) -> None:
        model = version.partition("/versions/")[0]
        for name in (model, *self._versions(model)):
            self._expect(name, None)
            self._world.states[name] = {None}

    def _expect(self, name: str, state: State, what: str = "") -> None:
        if state not in self._states(name):
            self._violate(f"{what or name} is {state}; known: {self._states(name)}")

    def _violate(self, what: str) -> None:
        self._world.violate(f"{self._name}: {what}")

    # ---- what there is

    def _call(self, method: str, path: str, body: Any = None) -> Reply | None:
        """One request; None if its answer was lost, and nobody knows what has become of it."""
        if self._world.over.is_set():
            return None
        try:
            response = self._http.request(method, f"{self._world.server.url}/v1/{path}", json=body)
        except httpx.TransportError:
            self._world.answers["lost"] += 1
            time.sleep(0.05)  # nobody listens until the next server does
            return None
        kind = "predict" if path.endswith(":predict") else "control"
        self._world.answers[f"{kind} {response.status_code}"] += 1
        reply = Reply(response.status_code, response.json(), response.headers)
        if reply.status == 200 and method != "GET" and kind == "control":
            created = body.get("name") or body.get("jobId") if method == "POST" and body else ""
            name = path.partition("?")[0].removesuffix(":cancel") + (f"/{created}" if created else "")
            with self._world.lock:
                self._world.acknowledged[name] += 1
        if reply.status >= 500 and kind == "control":
            self._violate(f"{method} {path}: {reply.json}")
            return None
        if reply.status == 500:
            self._violate(f"{method} {path}: {reply.json}")
        return reply

    def _model(self) -> str:
        return f"{PROJECT}/models/{self._name}_{self._chance.randrange(2)}"

    def _version(self) -> str:
        return f"{self._model()}/versions/v{self._chance.randrange(2)}"

    def _versions(self, model: str) -> Iterator[str]:
        return (f"{model}/versions/v{number}" for number in range(2))

    def _states(self, name: str) -> set[State]:
        return self._world.states.setdefault(name, {name} if name == ANCHOR else {None})

    def _text(self) -> str:
        self._texts += 1
        return f"text_{self._texts}"


def _last(name: str) -> str:
    return name.rpartition("/")[2]


@contextmanager
def world(root: Path, seed: int, size: Size) -> Iterator[World]:
    """A server with one version that stays, and input for jobs."""
    rows = models.data()[0][:2].tolist()
    estimator = models.write_sklearn(root / "model")
    jobs.write_lines(root / "in" / "rows.jsonl", rows * (RECORDS // 2))
    # Short: the paths of sockets are.
    with tempfile.TemporaryDirectory(prefix="mixed-") as folder:
        found = World(root, Path(folder), seed, size, rows, estimator.predict(rows).tolist())
        with found.stack:
            found.start()
            found.server.create_model(ANCHOR.partition("/versions")[0])
            found.server.create_version(ANCHOR, deploymentUri=str(root / "model"))
            yield found


# ---- afterwards


def check(world: World) -> None:
    """Everything acknowledged is there, everything begun has ended, and nothing else is left."""
    server = world.server
    until(lambda: not _unfinished(server), f"all operations and jobs end: {_unfinished(server)}", seconds=240)
    _check_operations(world)
    _check_resources(world)
    _check_jobs(world)
    _check_audit(world)
    until(lambda: not server.nodes(), "all versions sleep")
    _check_files(world)
    before = _everything(server)

    server.kill()
    world.start()

    assert _everything(world.server) == before
    assert world.server.predict(ANCHOR, world.rows).json == {"predictions": world.wanted}
    assert world.server.stop() == 0
    left = [str(entry.relative_to(world.folder)) for entry in world.folder.rglob("*")]
    assert not left, f"the temporary folder still has {left}"


def _all(server: Server, path: str, key: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    token = ""
    while True:
        reply = server.call("GET", path, params={"pageSize": 100, "pageToken": token})
        found += reply.json.get(key, [])
        token = reply.json.get("nextPageToken", "")
        if not token:
            return found


def _everything(server: Server) -> list[Any]:
    found = _all(server, f"{PROJECT}/models", "models")
    versions = [
        version for model in found for version in _all(server, f"{model['name']}/versions", "versions")
    ]
    for version in versions + [model["defaultVersion"] for model in found if "defaultVersion" in model]:
        version.pop("lastUseTime", None)  # a kill may lose the last minute of it
    return [
        found,
        versions,
        _all(server, f"{PROJECT}/operations", "operations"),
        _all(server, f"{PROJECT}/jobs", "jobs"),
    ]


def _unfinished(server: Server) -> list[str]:
    operations = _all(server, f"{PROJECT}/operations", "operations")
    found = [operation["name"] for operation in operations if not operation.get("done")]
    ended = [job["jobId"] for job in _all(server, f"{PROJECT}/jobs", "jobs") if job["state"] not in jobs.ENDS]
    return found + ended


def _check_operations(world: World) -> None:
    found = {
        operation["name"]: operation
        for operation in _all(world.server, f"{PROJECT}/operations", "operations")
    }
    assert set(world.operations) <= found.keys()
    errors = [operation for operation in found.values() if "error" in operation]
    # A version cannot be made where its node is killed again and again.
    assert all("SIGKILL" in operation["error"]["message"] for operation in errors), errors
    world.answers["failed creations"] = len(errors)


def _check_resources(world: World) -> None:
    shown: dict[str, State] = {}
    for model in _all(world.server, f"{PROJECT}/models", "models"):
        shown[model["name"]] = model.get("description")
        for version in _all(world.server, f"{model['name']}/versions", "versions"):
            assert version["state"] in ("READY", "FAILED")
            shown[version["name"]] = version.get("description")
    for name in (ANCHOR, ANCHOR.partition("/versions")[0]):
        del shown[name]
        world.states.pop(name, None)
    unknown = shown.keys() - world.states.keys()
    assert not unknown
    wrong = {
        name: (shown.get(name), states)
        for name, states in world.states.items()
        if shown.get(name) not in states
    }
    assert not wrong


def _check_jobs(world: World) -> None:
    shown = {job["jobId"]: job for job in _all(world.server, f"{PROJECT}/jobs", "jobs")}
    assert {name for name, job in world.jobs.items() if job.known} <= shown.keys() <= world.jobs.keys()
    for name, found in shown.items():
        job = world.jobs[name]
        if found["state"] == "SUCCEEDED":
            assert jobs.outcome(found) == ("SUCCEEDED", RECORDS, 0)
            assert len(jobs.results(job.folder)) == RECORDS
        elif found["state"] == "CANCELLED":
            assert job.cancelled, found
        else:
            assert "attempts were lost" in found["errorMessage"], found
        world.answers[f"job {found['state']}"] += 1
        jobs.check_nothing_is_left(world.server, job.folder)


def _check_audit(world: World) -> None:
    """Each acknowledged change is in the audit log as one that was done."""
    told: Counter[str] = Counter()
    for file in (world.server.state_dir / "audit").iterdir():
        for line in file.read_text().splitlines():
            entry = json.loads(line)
            payload = entry["protoPayload"]
            if entry["insertId"].endswith("b") and not payload["status"].get("code"):
                told[payload["resourceName"]] += 1
    missing = {name: n - told[name] for name, n in world.acknowledged.items() if told[name] < n}
    assert not missing


def _check_files(world: World) -> None:
    """The state folder holds what the catalog explains."""
    state = world.server.state_dir
    known = {table: uids(state, table) for table in ("versions", "jobs")}
    until(
        lambda: folders(state / "versions") <= known["versions"],
        f"no version leaves files {folders(state / 'versions') - known['versions']}",
    )
    assert folders(state / "jobs") <= known["jobs"]
    for name in (".partial", ".locks"):
        assert not folders(state / "cache" / name)
    # The server and its pilots.
    allowed = {world.server.process.pid, *world.pids("pilot")}
    until(lambda: world.server.processes().keys() <= allowed | set(world.pids("pilot")), "no process is left")


def folders(folder: Path) -> set[str]:
    """The names in a folder, if it is there."""
    return {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()


def uids(state_dir: Path, table: str) -> set[str]:
    """The uids of all resources of a table."""
    with closing(sqlite3.connect(f"file:{state_dir / 'state.db'}?mode=ro", uri=True)) as database:
        rows = database.execute(f"SELECT document FROM {table}").fetchall()
    return {json.loads(document)["uid"] for (document,) in rows}
