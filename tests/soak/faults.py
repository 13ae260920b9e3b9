"""The faults that befall a running server, each for some seconds, and the place where that is possible.

What needs more rights than a user has, or a tool that is not there, is left out, and says so.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import resource
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from tests.bounds import HANG_SECONDS
from tests.end_to_end import jobs
from tests.server import EndedAtStart, Server, processes_of, running_server, until

POISONED = "projects/soak/models/poisoned/versions/v1"
DISK_BYTES = 256 << 20
_CGROUPS = (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup"))
_CLOCK = Path(__file__).with_name("clock.c")
# Seconds by which the wall clock is set.
_CLOCK_STEPS = (-86400, -3600, 3600, 86400)


@dataclass
class Site:
    """Where a server runs, and runs again after it was killed: same port, same state, same disk.

    `disk` is a process that holds the file system under the state folder, which nobody else sees; `cgroup` is
    a group whose number of processes and threads can be limited; `clock` is a file with seconds. `started` is
    when the last server told its address, on `time.monotonic`.
    """

    root: Path
    temporary: Path
    seed: int
    flags: tuple[str, ...]
    missing: list[str] = field(default_factory=list)
    stack: ExitStack = field(default_factory=ExitStack)
    server: Server = field(init=False)
    chance: random.Random = field(init=False)
    lives: int = 0
    started: float = 0.0
    disk: int | None = None
    cgroup: Path | None = None
    clock: Path | None = None
    _environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.chance = random.Random(f"{self.seed} victims")

    @property
    def state(self) -> Path:
        """The state folder, as this process can reach it."""
        folder = self.root / "state"
        return Path(f"/proc/{self.disk}/root{folder}") if self.disk else folder

    def start(self) -> None:
        """Start a server on the state of the one before, if there was one."""
        self.server = self.stack.enter_context(
            running_server(
                self.root / "state",
                *self.flags,
                environment={"TMPDIR": str(self.temporary), **self._environment},
                prefix=self._prefix(),
            )
        )
        self.lives += 1
        self.started = time.monotonic()

    def _prefix(self) -> tuple[str, ...]:
        join = (
            ("sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.cgroup / "cgroup.procs"))
            if self.cgroup
            else ()
        )
        enter = ("nsenter", "-t", str(self.disk), "-U", "-m", "--preserve-credentials") if self.disk else ()
        return (*join, *enter)

    def pids(self, kind: str) -> list[int]:
        """The processes of a kind."""
        found = processes_of(self.root / "state")
        match kind:
            case "job":
                return sorted(pid for pids in jobs.processes(self.server).values() for pid in pids)
            case "sink":
                return sorted(pid for pid, command in found.items() if "serving.logs.sinks" in command)
            case _:
                name = {"pilot": "pilot", "node": "pilotlight-node"}[kind]
                return sorted(pid for pid in found if _name(pid) == name)

    def choose(self, kind: str) -> int | None:
        """One of them."""
        return self.chance.choice(found) if (found := self.pids(kind)) else None

    # ---- what the place has

    def mount_disk(self) -> None:
        """A small file system for the state, which outlives the server."""
        folder = self.root / "state"
        folder.mkdir()
        if shutil.which("unshare") is None or shutil.which("nsenter") is None:
            self.missing.append("disk: no unshare and nsenter")
            return
        mount = f'mount -t tmpfs -o size={DISK_BYTES} none "$0" && echo there && exec cat'
        holder = self.stack.enter_context(
            subprocess.Popen(
                ["unshare", "-rm", "sh", "-c", mount, str(folder)],
                stdin=subprocess.PIPE,  # it ends with this process
                stdout=subprocess.PIPE,
            )
        )
        self.stack.callback(holder.kill)
        assert holder.stdout is not None
        if holder.stdout.readline():
            self.disk = holder.pid
        else:
            self.missing.append("disk: this user may not mount a file system")

    def make_cgroup(self) -> None:
        """A group of our own, in either version of cgroups."""
        for parent in _CGROUPS:
            for left in _left_over(parent, "pilotlight-soak"):
                with suppress(OSError):
                    left.rmdir()
            group = parent / own_name("pilotlight-soak")
            with suppress(OSError):
                group.mkdir()
                if (group / "pids.max").exists():
                    self.cgroup = group
                    self.stack.callback(group.rmdir)
                    return
                group.rmdir()
        self.missing.append("threads: no cgroup of pids can be made")

    def start_again(self) -> int | None:
        """Start a server and wait until it is ready; the status of one that ends before that."""
        try:
            self.start()
        except EndedAtStart as error:
            return error.status
        until(self._is_ready_or_over, "the server is ready")
        return self.server.process.poll()

    def _is_ready_or_over(self) -> bool:
        with suppress(httpx.TransportError):
            if self.server.call("GET", "/readyz").status == 200:
                return True
        return self.server.process.poll() is not None

    def log(self, start: int = 0) -> str:
        """What the servers have logged, from a place in the file on."""
        return (self.root / "state.log").read_bytes()[start:].decode()

    def compile_clock(self) -> None:
        """A wall clock that can be set for the server alone."""
        library = self.root / "clock.so"
        compiler = shutil.which("cc")
        if compiler is None:
            self.missing.append("clock: no C compiler")
            return
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-o", library, _CLOCK, "-ldl"], check=True, timeout=HANG_SECONDS
        )
        self.clock = self.root / "clock"
        self.clock.write_bytes(struct.pack("q", 0))
        self._environment |= {"LD_PRELOAD": str(library), "CLOCK_OFFSET": str(self.clock)}


def own_name(name: str) -> str:
    """A name that tells which process's it is."""
    return f"{name}-{os.getpid()}-"


def _left_over(folder: Path, name: str) -> Iterator[Path]:
    """What has the name of a process that is gone: it was killed."""
    for path in folder.glob(f"{name}-*-*"):
        pid = path.name.removeprefix(f"{name}-").partition("-")[0]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            yield path


def sweep_folders(name: str) -> None:
    """Remove the temporary folders of runs that were killed."""
    for folder in _left_over(Path(tempfile.gettempdir()), name):
        shutil.rmtree(folder, ignore_errors=True)


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


@contextmanager
def opened(root: Path, temporary: Path, seed: int, *flags: str) -> Iterator[Site]:
    """A place with all that can be had, and a server that runs there."""
    site = Site(root, temporary, seed, flags)
    with site.stack:
        site.mount_disk()
        site.make_cgroup()
        site.compile_clock()
        site.start()
        yield site


# ---- faults: each is there for the time of its block, and says whether it happened at all


Fault = Callable[[Site], Iterator[bool]]


def _files(site: Site) -> Iterator[bool]:
    """The server may open no file but in the place of one that it closes."""
    pid = site.server.process.pid
    try:
        used = {int(file.name) for file in Path(f"/proc/{pid}/fd").iterdir()}
        free = next(number for number in itertools.count() if number not in used)
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (free, hard))
    except OSError:  # it is being started anew
        yield False
        return
    yield True
    with suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


def _threads(site: Site) -> Iterator[bool]:
    """The server and all its processes can start no thread and no process."""
    if site.cgroup is None:
        yield False
        return
    (site.cgroup / "pids.max").write_text((site.cgroup / "pids.current").read_text())
    yield True
    (site.cgroup / "pids.max").write_text("max")


def _disk(site: Site) -> Iterator[bool]:
    """No byte is free under the state folder."""
    if site.disk is None:
        yield False
        return
    ballast = site.state / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(1 << 20)):
            pass
        while file.write(bytes(4096)):
            pass
    yield True
    ballast.unlink()


def _clock(site: Site) -> Iterator[bool]:
    """The wall clock is an hour or a day off, and is then set right."""
    if site.clock is None:
        yield False
        return
    with site.clock.open("r+b") as file:
        file.write(struct.pack("q", site.chance.choice(_CLOCK_STEPS)))
        file.flush()
        yield True
        file.seek(0)
        file.write(struct.pack("q", 0))


def _stop_node(site: Site) -> Iterator[bool]:
    """A node stands still."""
    pid = site.choose("node")
    yield _signal(pid, signal.SIGSTOP)
    _signal(pid, signal.SIGCONT)


def _kill(kind: str) -> Fault:
    def kill(site: Site) -> Iterator[bool]:
        yield _signal(site.choose(kind), signal.SIGKILL)

    return kill


def _signal(pid: int | None, what: signal.Signals) -> bool:
    if pid is None:
        return False
    try:
        os.kill(pid, what)
    except ProcessLookupError:  # it has ended just now
        return False
    return True


def _poison(instance: str) -> Fault:
    """A request that ruins the node it goes to; its answer is no concern of ours."""

    def poison(site: Site) -> Iterator[bool]:
        body = json.dumps({"instances": [instance]}).encode()
        host, _, port = site.server.url.removeprefix("http://").partition(":")
        head = (
            f"POST /v1/{POISONED}:predict HTTP/1.1\r\nhost: {host}:{port}\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        try:
            client = socket.create_connection((host, int(port)), timeout=5)
        except OSError:  # it is being started anew
            yield False
            return
        with client:
            client.sendall(head.encode() + body)
            yield True

    return poison


LASTING: Mapping[str, Fault] = {
    "files": _files,
    "threads": _threads,
    "disk": _disk,
    "clock": _clock,
    "node stopped": _stop_node,
    "node poisoned": _poison("exit 3"),
    "node loops": _poison("loop"),
    "memory eaten": _poison("eat"),
}
SUDDEN: Mapping[str, Fault] = {
    "node killed": _kill("node"),
    "pilot killed": _kill("pilot"),
    "sink killed": _kill("sink"),
    "job killed": _kill("job"),
}
FAULTS: Mapping[str, Callable[[Site], AbstractContextManager[bool]]] = {
    name: contextmanager(fault) for name, fault in {**LASTING, **SUDDEN}.items()
}
