"""The thread pools of BLAS and OpenMP, in which the libraries under a model compute."""

from __future__ import annotations

from threadpoolctl import ThreadpoolController

from serving import config


class ThreadLimit:
    """Keeps the pools of the libraries that are loaded by now to a number of threads.

    OpenMP keeps that number for each thread that calls it, so `apply` holds for the calling one.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        # Searching the process for such libraries takes 15 ms; what they read when they were loaded may do.
        needed = threads != 1 or not config.is_framework_environment_set()
        self._controller = ThreadpoolController() if needed else None

    def apply(self) -> None:
        """Set the limit for the calling thread."""
        if self._controller is not None:
            self._controller.limit(limits=self._threads)
