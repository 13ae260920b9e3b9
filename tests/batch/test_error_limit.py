"""Limits of errors."""

from __future__ import annotations

import pytest

from batch.failures import ErrorLimit
from serving.errors import InvalidArgument


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("", ErrorLimit()),
        ("0", ErrorLimit(records=0)),
        ("100", ErrorLimit(records=100)),
        ("1", ErrorLimit(records=1)),
        ("0.1", ErrorLimit(share=0.1)),
        ("0.0", ErrorLimit(share=0.0)),
        ("1.0", ErrorLimit(share=1.0)),
        ("10%", ErrorLimit(share=0.1)),
        ("0.5%", ErrorLimit(share=0.005)),
        ("100%", ErrorLimit(share=1.0)),
    ],
)
def test_a_limit_is_a_number_or_a_share(text: str, limit: ErrorLimit) -> None:
    """Digits alone are records; with a point or a percent sign it is a share of all."""
    assert ErrorLimit.parse(text) == limit


@pytest.mark.parametrize(
    "text", ["-1", "-0.1", "1.5", "101%", "nan", "inf", "ten", "%", "10%%", " ", "²", "0x1", "1,5"]
)
def test_what_is_no_limit(text: str) -> None:
    """The error repeats it and says how one is written."""
    with pytest.raises(InvalidArgument) as caught:
        ErrorLimit.parse(text)

    assert repr(text) in caught.value.message
    assert "10%" in caught.value.message


@pytest.mark.parametrize(
    ("limit", "predictions", "errors", "final", "exceeded"),
    [
        ("", 0, 10**9, True, False),
        ("0", 10, 0, False, False),
        ("0", 0, 1, False, True),
        ("5", 0, 5, True, False),
        ("5", 10**9, 6, False, True),
        ("10%", 9, 1, True, False),
        ("10%", 8, 2, True, True),
        ("10%", 8, 2, False, False),  # too few to tell
        ("10%", 899, 101, False, True),
        ("10%", 900, 100, False, False),
        ("0.0", 999_999, 1, False, True),
        ("100%", 0, 5000, True, False),
    ],
)
def test_when_a_limit_is_exceeded(
    limit: str, predictions: int, errors: int, final: bool, exceeded: bool
) -> None:
    """More bad records than the limit; a share counts from 1000 records on, and at the end."""
    reason = ErrorLimit.parse(limit).explain_excess(predictions, errors, final=final)

    assert bool(reason) is exceeded
    if exceeded:
        assert reason.startswith(f"{errors} of {predictions + errors} records failed; at most ")
