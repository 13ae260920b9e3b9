"""Options of Beam that jobs may set."""

from __future__ import annotations

import importlib.util

from batch.messages import EMBEDDED
from serving.errors import FailedPrecondition, InvalidArgument, field_error
from serving.resources import BatchOptions

# Beam's options that only choose the number, size and kind of the runner's machines.
_CAPACITY_OPTIONS = (
    "autoscaling_algorithm",
    "disk_size_gb",
    "element_processing_timeout_minutes",
    "flexrs_goal",
    "label",
    "labels",
    "machine_type",
    "max_cache_memory_usage_mb",
    "max_num_workers",
    "max_parallelism",
    "min_cpu_platform",
    "num_workers",
    "number_of_worker_harness_threads",
    "parallelism",
    "region",
    "sdk_worker_parallelism",
    "worker_machine_type",
    "worker_region",
    "worker_zone",
    "zone",
)


def require_beam() -> None:
    """Raise FailedPrecondition where the extra that brings Beam is not installed."""
    if importlib.util.find_spec("apache_beam") is None:
        raise FailedPrecondition(
            "Batch predictions need Apache Beam, which this server does not have. On its machine: "
            "pip install 'pilotlight[batch]'"
        )


def check_beam_options(given: BatchOptions, runner: str) -> None:
    """Check that a job sets only its capacity, and chooses between the server's `runner` and the local one.

    All other options of Beam start programs, fetch code or name files, addresses and accounts.
    """
    if given.runner not in ("", EMBEDDED, runner):
        choice = EMBEDDED if runner == EMBEDDED else f"{EMBEDDED} or {runner}"
        raise field_error(
            InvalidArgument,
            "batch_options.runner",
            f"{given.runner!r} is not the runner of this server (setting batch_runner). Leave it out, or "
            f"name {choice}.",
        )
    takes_value = False
    for word in given.pipeline_options:
        name, separator, _ = word.partition("=")
        if takes_value and not word.startswith("-"):
            takes_value = False
        elif name.removeprefix("--") in _CAPACITY_OPTIONS and name.startswith("--"):
            takes_value = not separator
        else:
            # Exact names only: Beam and job servers accept other spellings too.
            allowed = ", ".join(f"--{option}" for option in _CAPACITY_OPTIONS)
            raise field_error(
                InvalidArgument,
                "batch_options.pipeline_options",
                f"A job cannot set {name!r}, only {allowed}. All other "
                "options are the server's (setting batch_options).",
            )
