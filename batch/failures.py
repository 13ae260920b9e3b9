"""How jobs fail: too many rejected records, or an error in a step, carried through Beam in its text.

Engines tell of that late: workers on other machines leave it in a file, too.
"""

from __future__ import annotations

import logging
import re
import traceback
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from batch.messages import FailureStatus
from batch.worker_signs import WorkerFailure, write_failure
from serving.artifacts.storage import FileStore
from serving.errors import Internal, InvalidArgument, ServingError, Unavailable, describe_exception

logger = logging.getLogger(__name__)

# A share counts from this many records on while a job runs, and always at its end.
_MIN_RECORDS = 1000
# Beam passes on nothing of an exception but its text.
_MARK = re.compile(r"pilotlight-failure:([A-Za-z0-9_=-]+):")


class JobFailed(Exception):
    """The job has failed, and another attempt would too; `failure` says why."""

    def __init__(self, failed: FailureStatus) -> None:
        super().__init__(failed.message)
        self.failure = failed


class WorkersLost(Unavailable):
    """Workers were lost: the next attempt may succeed, on others."""


class StepFailed(Exception):
    """A step of the pipeline has failed; its text carries the ServingError."""


@contextmanager
def carry_errors() -> Iterator[None]:
    """Encode a ServingError in the text of a StepFailed, from which `extract_failure` decodes it."""
    try:
        yield
    except ServingError as error:
        failed = msgspec.json.encode(FailureStatus(error.status, error.message))
        raise StepFailed(
            f"{error.message} pilotlight-failure:{urlsafe_b64encode(failed).decode()}:"
        ) from error


@dataclass(frozen=True, slots=True)
class StepErrors:
    """Carries the errors of steps. With `folder`, that of the workers' signs, the first one is written there
    as well: an engine repeats a step that has failed a few times, with new workers, before it tells.
    """

    files: FileStore | None = None
    folder: str = ""

    @contextmanager
    def carry(self) -> Iterator[None]:
        try:
            with carry_errors():
                yield
        except StepFailed as error:
            self._write(error.__cause__ or error)
            raise
        except (MemoryError, OSError):
            # Another worker may have enough, or a disk that works.
            raise
        except Exception as error:
            self._write(error)
            raise

    def _write(self, error: BaseException) -> None:
        if self.files is None or isinstance(error, Unavailable):
            return
        failure = (
            FailureStatus(error.status, error.message)
            if isinstance(error, ServingError)
            else FailureStatus(Internal.status, f"The pipeline failed: {describe_exception(error)}")
        )
        trace = "".join(traceback.format_exception(error))
        try:
            write_failure(self.files, self.folder, WorkerFailure(failure, trace))
        except (ServingError, OSError) as other:
            # The engine tells of the error, later.
            logger.warning("%s cannot be written: %s", self.folder, other)


# For workers of this machine: their first error ends the pipeline.
IN_TEXT_ONLY = StepErrors()


def extract_failure(text: str) -> FailureStatus | None:
    """The error that the text of an exception of Beam carries, if it is one of ours."""
    found = _MARK.findall(text)
    # Ours is the last: a message before it may quote anything.
    return msgspec.json.decode(urlsafe_b64decode(found[-1]), type=FailureStatus) if found else None


@dataclass(frozen=True, slots=True)
class ErrorLimit:
    """At most `records` rejected records, or at most a `share` of all; None: no such limit."""

    records: int | None = None
    share: float | None = None

    @classmethod
    def parse(cls, text: str) -> ErrorLimit:
        """ "" (none), "100" records, "0.1" or "10%" of them. Raises InvalidArgument for anything else."""
        try:
            if not text:
                return cls()
            if text.isdigit():
                return cls(records=int(text))
            share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            raise InvalidArgument(
                f"{text!r} is not an error limit: a number of records (100), or a share of them (10% or 0.1)."
            )
        return cls(share=share)

    def explain_excess(self, predictions: int, errors: int, *, final: bool) -> str:
        """Why a job with so many of each must stop, "" if it need not."""
        records = predictions + errors
        if self.records is not None and errors > self.records:
            return f"{errors} of {records} records failed; at most {self.records} may."
        if self.share is not None and (final or records >= _MIN_RECORDS) and errors > self.share * records:
            return f"{errors} of {records} records failed; at most {self.share:.6g} of all may."
        return ""
