"""Errors of ours on their way through Beam, which hands on nothing of an exception but its text."""

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
    """The job comes to no good end, and another attempt would not either; `failed` says why."""

    def __init__(self, failed: FailureStatus) -> None:
        super().__init__(failed.message)
        self.failure = failed


class StepFailed(Exception):
    """A step of the pipeline cannot go on; its text carries the ServingError that says why."""


@contextmanager
def carry_errors() -> Iterator[None]:
    """Have a ServingError arrive at whoever runs the pipeline."""
    try:
        yield
    except ServingError as error:
        failed = msgspec.json.encode(FailureStatus(error.status, error.message))
        raise StepFailed(
            f"{error.message} pilotlight-failure:{urlsafe_b64encode(failed).decode()}:"
        ) from error


def extract_failure(text: str) -> FailureStatus | None:
    """The error that the text of Beam's exception carries, if it was one of ours."""
    found = _MARK.findall(text)
    # Ours is the last: a message before it may quote anything.
    return msgspec.json.decode(urlsafe_b64decode(found[-1]), type=FailureStatus) if found else None
