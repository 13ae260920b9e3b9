"""Carry errors through Beam, which passes on nothing of an exception but its text."""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from batch.messages import FailureStatus
from serving.errors import ServingError

_MARK = re.compile(r"pilotlight-failure:([A-Za-z0-9_=-]+):")


class JobFailed(Exception):
    """The job has failed, and another attempt would too; `failure` says why."""

    def __init__(self, failed: FailureStatus) -> None:
        super().__init__(failed.message)
        self.failure = failed


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


def extract_failure(text: str) -> FailureStatus | None:
    """The error that the text of an exception of Beam carries, if it is one of ours."""
    found = _MARK.findall(text)
    # Ours is the last: a message before it may quote anything.
    return msgspec.json.decode(urlsafe_b64decode(found[-1]), type=FailureStatus) if found else None
