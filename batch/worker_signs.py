"""What workers on other machines tell: small files in the folder of the job's temporary files.

Engines do not tell whether the worker that they have asked for has begun, and repeat what has failed a few
times before they tell of that.
"""

from __future__ import annotations

import os
import platform
import socket
import uuid
from collections.abc import Sequence

import msgspec

from batch.messages import FailureStatus
from serving.artifacts.storage import FileStore
from serving.errors import ServingError

# In the folder of the signs.
_FAILURES = "failures"


class WorkerSign(msgspec.Struct, frozen=True, omit_defaults=True):
    """A worker that has begun, or why it cannot."""

    host: str
    pid: int
    trouble: str = ""


class WorkerFailure(msgspec.Struct, frozen=True):
    """An error in a step that would be the same on other workers; `trace` is Python's."""

    failure: FailureStatus
    trace: str


class WorkerVersions(msgspec.Struct, frozen=True):
    """What a worker must have in common with the process that submitted the pipeline."""

    python: str
    beam: str

    @classmethod
    def of_this_process(cls) -> WorkerVersions:
        from apache_beam.version import __version__  # noqa: PLC0415  seconds

        return cls(".".join(platform.python_version_tuple()[:2]), __version__)

    def explain_difference(self, wanted: WorkerVersions) -> str:
        """ "" if there is none."""
        if self == wanted:
            return ""
        return (
            f"The worker on {socket.gethostname()} has Python {self.python} and Beam {self.beam}, the job "
            f"has Python {wanted.python} and Beam {wanted.beam}. Install the same versions on both sides."
        )


def format_signs_folder(folder: str) -> str:
    """Where signs are, in the folder of a job's temporary files."""
    return f"{folder}/workers"


def write_sign(files: FileStore, folder: str, trouble: str = "") -> None:
    """Raises a ServingError or OSError."""
    sign = WorkerSign(socket.gethostname(), os.getpid(), trouble)
    files.write(f"{folder}/{sign.host}-{sign.pid}.json", msgspec.json.encode(sign))


def read_signs(files: FileStore, folder: str) -> Sequence[WorkerSign]:
    """Those that there are now; none if they cannot be read."""
    try:
        names = [item.uri for item in files.glob(f"{folder}/*")]
        return [msgspec.json.decode(files.read(name), type=WorkerSign) for name in names]
    except (ServingError, OSError, msgspec.DecodeError):
        return ()


def write_failure(files: FileStore, folder: str, failure: WorkerFailure) -> None:
    """`folder` is that of the signs. Raises a ServingError or OSError."""
    files.write(f"{folder}/{_FAILURES}/{uuid.uuid4().hex}.json", msgspec.json.encode(failure))


def find_failure(files: FileStore, folder: str) -> WorkerFailure | None:
    """One of those that there are now; None if they cannot be read."""
    try:
        names = [item.uri for item in files.glob(f"{folder}/{_FAILURES}/*")]
        return msgspec.json.decode(files.read(names[0]), type=WorkerFailure) if names else None
    except (ServingError, OSError, msgspec.DecodeError):
        return None
