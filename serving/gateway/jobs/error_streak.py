"""What follows from errors of the server's own at a job: pure data.

A job's process that is lost, and one that reports a failure, is no such error.
"""

from __future__ import annotations

import dataclasses
import errno
from dataclasses import dataclass

from autoscaler.errors import is_shortage
from autoscaler.supervision import describe_error
from serving.errors import ServingError, Unavailable

# A disk that may not be written, and a file larger than the server may write.
_DISK_ERRORS = frozenset({errno.EROFS, errno.EFBIG})


@dataclass(frozen=True, slots=True)
class ErrorStreak:
    """Errors in a row at one job.

    `delays` are the seconds after the first, the second and so on; with one more the job fails, temporary
    ones (see `is_temporary`) left out. `reason` is what the last one says, for the owner of the job.
    """

    delays: tuple[float, ...]
    errors: int = 0
    failures: int = 0
    reason: str = ""

    def add(self, error: Exception) -> ErrorStreak:
        return dataclasses.replace(
            self,
            errors=self.errors + 1,
            failures=self.failures + (not is_temporary(error)),
            reason=explain_error(error),
        )

    @property
    def is_exhausted(self) -> bool:
        """Whether another try would not help."""
        return self.failures > len(self.delays)

    @property
    def delay(self) -> float:
        """Seconds before the next try."""
        return self.delays[min(self.errors, len(self.delays)) - 1]


def is_temporary(error: Exception) -> bool:
    """Whether the machine, or the state file, is in a condition that passes, and for which jobs wait."""
    return (
        isinstance(error, Unavailable)
        or is_shortage(error)
        or (isinstance(error, OSError) and error.errno in _DISK_ERRORS)
    )


def explain_error(error: Exception) -> str:
    """What an error says, for the owner of a job."""
    return error.message if isinstance(error, ServingError) else describe_error(error)
