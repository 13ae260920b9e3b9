"""Runs a program on this machine for whoever sits in front of it: alone, or as a cluster of processes."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

from training.cluster import Replica, build_environment, list_replicas
from training.messages import ReplicaGroup, ReplicaRole, TrainingRequest
from training.program import PROVIDED
from training.replicas import child
from training.replicas.event_loop import EventLoop
from training.replicas.job_processes import JobProcesses
from training.replicas.restart_policy import describe_exit

_GRACE_SECONDS = 5.0
_PRINT_VERSION = """
try:
    from importlib.metadata import version
except ImportError:
    from pkg_resources import get_distribution
    version = lambda name: get_distribution(name).version
print(version("tensorflow"))
"""


@dataclass(frozen=True, slots=True)
class LocalProgram:
    """A module with its arguments, the Python that runs it, and the folder in which it runs."""

    module: str
    arguments: tuple[str, ...]
    python: str
    folder: Path

    @property
    def command(self) -> list[str]:
        return [self.python, "-m", self.module, *self.arguments]


@dataclass(frozen=True, slots=True)
class LocalCluster:
    """How many replicas there are besides the master. Ports are given out from `start_port` on."""

    workers: int
    parameter_servers: int
    evaluators: int
    start_port: int

    @property
    def groups(self) -> tuple[ReplicaGroup, ...]:
        groups = (
            ReplicaGroup(ReplicaRole.MASTER),
            ReplicaGroup(ReplicaRole.PARAMETER_SERVER, self.parameter_servers),
            ReplicaGroup(ReplicaRole.WORKER, self.workers),
            ReplicaGroup(ReplicaRole.EVALUATOR, self.evaluators),
        )
        return tuple(group for group in groups if group.count)

    @property
    def last_port(self) -> int:
        """Evaluators have none."""
        return self.start_port + self.workers + self.parameter_servers


def run_alone(program: LocalProgram, environment: Mapping[str, str]) -> int:
    """Run the program at this terminal; returns its exit code, as a shell has it. Raises OSError.

    To be called in the main thread: signals that end this process are passed on.
    """
    config = {"job": _describe_job(program), "task": {}, "cluster": {}, "environment": "cloud"}
    variables = {**_add_provided_modules(environment), "TF_CONFIG": json.dumps(config)}
    started = subprocess.Popen(program.command, cwd=program.folder, env=variables)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: started.send_signal(received))
    while True:
        try:
            code = started.wait()
        except KeyboardInterrupt:  # which the program gets too
            continue
        return code if code >= 0 else 128 - code


class ClusterRun:
    """A run of a cluster. What its processes print goes to our own streams, each line behind its task."""

    def __init__(
        self, program: LocalProgram, cluster: LocalCluster, environment: Mapping[str, str], primary_name: str
    ) -> None:
        self._program = program
        self._environment = _add_provided_modules(environment)
        self._loop = EventLoop()
        self._processes = JobProcesses(self._loop, _TerminalWriter())
        self._request = TrainingRequest(
            job="local",
            uid="local",
            module=program.module,
            groups=cluster.groups,
            primary_name=primary_name,
            training_input=_describe_job(program),
            environment=self._environment,
            scratch_dir="",
            log_dir="",
            cache_dir="",
            cache_bytes=0,
        )
        replicas = list_replicas(cluster.groups)
        listening = [replica for replica in replicas if replica.role is not ReplicaRole.EVALUATOR]
        self._ports = dict(zip(listening, itertools.count(cluster.start_port), strict=False))
        self._replicas = sorted(replicas, key=lambda one: one.role is ReplicaRole.MASTER)
        self._exit_code = 0
        self._is_ending = False
        self._is_over = False

    def run(self) -> int:
        """Run until the master has ended, and return its exit code; the others are ended then.

        Raises OSError if a replica cannot be started; the others end with this process.
        """
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.add_signal_handler(number, partial(self._end, 128 + number))
        for replica in self._replicas:
            self._start_replica(replica)
        self._loop.run_until(lambda: self._is_over)
        self._loop.close()
        return self._exit_code

    def _start_replica(self, replica: Replica) -> None:
        threads = max(1, len(os.sched_getaffinity(0)) // len(self._replicas))
        environment = build_environment(self._request, replica, self._ports, threads=threads, restarts=0)

        def run() -> NoReturn:
            child.execute(self._program.command, environment, self._program.folder)

        self._processes.start(run, replica.task_name, lambda code: self._handle_exit(replica, code))

    def _handle_exit(self, replica: Replica, exit_code: int) -> None:
        if exit_code != 0:
            print(describe_exit(replica, exit_code), file=sys.stderr)
        if replica.role is ReplicaRole.MASTER:
            self._end(exit_code if exit_code >= 0 else 128 - exit_code)

    def _end(self, exit_code: int) -> None:
        if not self._is_ending:
            self._is_ending, self._exit_code = True, exit_code
            self._processes.end_all(_GRACE_SECONDS, self._handle_all_gone)

    def _handle_all_gone(self) -> None:
        self._is_over = True


class _TerminalWriter:
    def write(self, task: str, lines: Iterable[tuple[str, str]]) -> None:
        for severity, text in lines:
            print(f"{task}: {text}", file=sys.stdout if severity == "INFO" else sys.stderr, flush=True)


def find_primary_name(python: str) -> str:
    """What TF_CONFIG calls the primary: "master" for TensorFlow 1, "chief" for all others.

    The version is looked up without an import of TensorFlow, which takes seconds.
    """
    done = subprocess.run([python, "-c", _PRINT_VERSION], capture_output=True, text=True, check=False)
    return "master" if done.stdout.startswith("1.") else "chief"


def _describe_job(program: LocalProgram) -> dict[str, object]:
    return {"job_name": program.module, "args": list(program.arguments)}


def _add_provided_modules(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment in which programs also find what the server provides."""
    folders: Sequence[str] = [environment.get("PYTHONPATH", ""), str(PROVIDED)]
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
