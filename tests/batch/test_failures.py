"""Errors on their way through Beam."""

from __future__ import annotations

from pathlib import Path

import pytest

from batch.failures import JobFailed, StepErrors, StepFailed, carry_errors, extract_failure
from batch.messages import FailureStatus
from batch.worker_signs import find_failure, read_signs
from serving.artifacts.storage import FileStore
from serving.errors import InvalidArgument, InvalidOutputs, ServingError, Unavailable


@pytest.mark.parametrize(
    "error",
    [
        InvalidArgument("No."),
        Unavailable("Later: pilotlight-failure:abc: and\nmore 'quotes' \\ ä€😀"),
        InvalidOutputs("x" * 100_000),
    ],
)
def test_an_error_arrives_as_it_was(error: ServingError) -> None:
    """Its code and its message, out of whatever text Beam puts around it, once or more often."""
    with pytest.raises(StepFailed) as caught, carry_errors():
        raise error
    text = f"{caught.value}"
    beam = f"Traceback …\n  batch.failures.StepFailed: {text} [while running 'Read']\n\n{text}!"

    assert extract_failure(beam) == FailureStatus(error.status, error.message)
    assert error.message in text
    assert caught.value.__cause__ is error


def test_a_message_may_look_like_a_failure() -> None:
    """A message (it may quote a record) that holds what looks like a carried error is no other error."""
    message = "Odd: pilotlight-failure:abc: and pilotlight-failure:e30=:"
    with pytest.raises(StepFailed) as caught, carry_errors():
        raise InvalidArgument(message)

    assert extract_failure(f"{message}\n{caught.value}\n") == FailureStatus("INVALID_ARGUMENT", message)


def test_other_errors_are_not_touched() -> None:
    """What is no error of ours goes as it came, and nothing arrives."""
    with pytest.raises(KeyError) as caught, carry_errors():
        raise KeyError("x")

    assert extract_failure(str(caught.value)) is None
    assert extract_failure("") is None


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (InvalidArgument("No."), FailureStatus("INVALID_ARGUMENT", "No.")),
        (ValueError("x"), FailureStatus("INTERNAL", "The pipeline failed: ValueError: x")),
        # On other workers, or later, it may go well.
        (Unavailable("Later."), None),
        (MemoryError(), None),
        (OSError("no space"), None),
    ],
)
def test_an_error_that_stays_is_left_in_a_file(
    tmp_path: Path, error: Exception, told: FailureStatus | None
) -> None:
    with pytest.raises((StepFailed, type(error))), StepErrors(FileStore(), str(tmp_path)).carry():
        raise error
    found = find_failure(FileStore(), str(tmp_path))

    assert (found and found.failure) == told
    assert found is None or type(error).__name__ in found.trace
    assert not read_signs(FileStore(), str(tmp_path))


def test_an_error_is_told_where_no_file_can_be_written(tmp_path: Path) -> None:
    """By the engine, later."""
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="x"), StepErrors(FileStore(), f"{tmp_path}/file").carry():
        raise ValueError("x")


def test_a_failed_job_says_why() -> None:
    """Its text is the message."""
    assert str(JobFailed(FailureStatus("INTERNAL", "Why."))) == "Why."
