"""Starts the replicas of a job: their environment, folder and program."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from serving.scratch_folders import remove_folder
from training.cluster import PortReservation, Replica, build_environment
from training.messages import ContainerEngine, ContainerProgram, TrainingRequest
from training.program import PROVIDED, Program
from training.replicas import child, containers, forked_program
from training.replicas.job_processes import JobProcesses, OnExit, RunningProcess


class ReplicaLauncher:
    """`from_pilot`: this process has imported what programs need, so they are forked where that is safe."""

    def __init__(self, request: TrainingRequest, processes: JobProcesses, *, from_pilot: bool) -> None:
        self._request = request
        self._processes = processes
        self._from_pilot = from_pilot
        self._threads = request.threads or max(1, len(os.sched_getaffinity(0)) // request.size)
        self._ports = PortReservation((), request.first_port, request.last_port)
        self._program = Program(())
        self._forks = False
        self._containers = {group.role: group.container for group in request.groups}

    def set_program(self, program: Program) -> str:
        """Set what is run; returns why that cannot be forked, "" if it can or no pilot is there."""
        self._program = program
        if not self._from_pilot or program.installed.interpreter or program.images:
            return ""
        obstacle = forked_program.find_obstacle(self._request.variables, program.installed.folders)
        self._forks = not obstacle
        return obstacle

    def reserve_ports(self, replicas: Sequence[Replica]) -> None:
        """Choose the addresses of replicas that are about to start; raises OSError."""
        self._ports.close()
        self._ports = PortReservation(replicas, self._request.first_port, self._request.last_port)

    def start(self, replica: Replica, restarts: int, on_exit: OnExit) -> RunningProcess:
        """Start a replica in an empty folder of its own, at its address; raises OSError."""
        environment = self._build_environment(replica, restarts)
        folder = Path(self._request.scratch_dir, "replicas", replica.task_name)
        remove_folder(folder)
        folder.mkdir(parents=True)
        self._ports.release(replica)
        engine, container = self._request.engine, self._containers[replica.role]
        if engine is not None and container is not None:
            command = self._build_container_command(engine, container, replica, environment)
            return self._processes.start_container(
                command, engine.environment, folder, replica.task_name, on_exit
            )
        return self._processes.start(
            lambda: self._become_program(environment, folder), replica.task_name, on_exit
        )

    def close(self) -> None:
        self._ports.close()
        self._program.close()

    def _build_environment(self, replica: Replica, restarts: int) -> dict[str, str]:
        environment = build_environment(
            self._request, replica, self._ports.ports, threads=self._threads, restarts=restarts
        )
        if self._program.images:
            return environment
        installed = map(str, self._program.installed.folders)
        folders = (*installed, environment.get("PYTHONPATH", ""), str(PROVIDED))
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
        return environment

    def _build_container_command(
        self,
        engine: ContainerEngine,
        container: ContainerProgram,
        replica: Replica,
        environment: Mapping[str, str],
    ) -> list[str]:
        request, program = self._request, self._program
        return containers.build_command(
            engine,
            program.images[container.image],
            container,
            program.arguments,
            environment,
            name=containers.make_name(request.job, replica.task_name),
            job_dir=program.job_dir,
            memory_bytes=request.memory_bytes // request.size,
            lifeline=child.LIFELINE,
        )

    def _become_program(self, environment: Mapping[str, str], folder: Path) -> NoReturn:
        """In the process of a replica."""
        module, program = self._request.module, self._program
        if self._forks:
            forked_program.run_module(
                module, program.arguments, environment, folder=folder, threads=self._threads
            )
        python = program.installed.interpreter or sys.executable
        child.execute([python, "-m", module, *program.arguments], environment, folder)
