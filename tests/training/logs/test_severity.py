"""How severe a line is."""

from __future__ import annotations

import pytest

from training.logs.severity import SeverityParser


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("epoch 1", "INFO"),
        ("ERRORS: 0", "INFO"),
        ("WARNING:root:careful", "WARNING"),
        ("ERROR:trainer:no", "ERROR"),
        ("2026-01-31 12:00:00,123 CRITICAL no", "CRITICAL"),
        ("[DEBUG] x", "DEBUG"),
        ("2026-01-31 12:00:00.123456: W tensorflow/core.cc:1] slow", "WARNING"),
        ("E0131 12:00:00.123456 12 x.cc:1] bad", "ERROR"),
    ],
)
def test_the_line_says_it(line: str, expected: str) -> None:
    assert SeverityParser().parse(line) == expected


def test_a_traceback_is_an_error_to_its_last_line() -> None:
    parser = SeverityParser()
    lines = ["Traceback (most recent call last):", '  File "x"', "    f()", "ValueError: x", "next"]

    assert [parser.parse(line) for line in lines] == ["ERROR"] * 4 + ["INFO"]
