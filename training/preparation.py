"""Has the packages of a program installed, in a process of its own, unless they are already."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NoReturn

from serving.errors import ServingError
from training.logs.entries import SERVICE_TASK
from training.messages import TrainingFailure, TrainingRequest
from training.program import Program, ProgramBuilder
from training.replicas.job_processes import JobProcesses


class Preparation:
    """Calls back with the program, or with a failure."""

    def __init__(
        self,
        request: TrainingRequest,
        processes: JobProcesses,
        *,
        write_note: Callable[[str], None],
        on_ready: Callable[[Program], None],
        on_failure: Callable[[TrainingFailure], None],
    ) -> None:
        self.builder = ProgramBuilder(request)
        self._has_images = request.engine is not None
        self._processes = processes
        self._write_note = write_note
        self._on_ready = on_ready
        self._on_failure = on_failure

    def begin(self) -> None:
        try:
            program = self.builder.find()
        except ServingError as error:
            self._on_failure(TrainingFailure(error.status, error.message))
            return
        if program is not None:
            self._on_ready(program)
            return

        def install() -> NoReturn:
            self.builder.install()
            os._exit(0)

        self._write_note("Pulling images." if self._has_images else "Installing packages.")
        self._processes.start(install, SERVICE_TASK, self._handle_installed)

    def _handle_installed(self, exit_code: int) -> None:
        if exit_code:
            what = "Pulling the images" if self._has_images else "Installing the packages"
            message = f"{what} ended with exit code {exit_code}."
            self._on_failure(TrainingFailure("INTERNAL", message))
            return
        try:
            program = self.builder.read_installed()
        except ServingError as error:
            self._on_failure(TrainingFailure(error.status, error.message))
            return
        if isinstance(program, TrainingFailure):
            self._on_failure(program)
        else:
            self._on_ready(program)
