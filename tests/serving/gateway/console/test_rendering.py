"""Figures and addresses as pages write them."""

from __future__ import annotations

import pytest

from serving.gateway.console.rendering import build_url, format_bytes, format_rate, format_seconds


@pytest.mark.parametrize(
    ("size", "text"),
    [(None, "-"), (0, "0 B"), (1536, "1.5 KiB"), (200 << 20, "200 MiB"), (3 << 40, "3.0 TiB")],
)
def test_bytes(size: float | None, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.00024, "240 µs"),
        (0.00312, "3.12 ms"),
        (2.5, "2.5 s"),
        (245, "4 min 5 s"),
        (3600, "1 h"),
        (90061, "1 d 1 h 1 min 1 s"),
    ],
)
def test_seconds(seconds: float | None, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("rate", "text"), [(None, "-"), (0, "0"), (0.25, "0.25"), (12.34, "12.3"), (1234, "1,234")]
)
def test_rate(rate: float | None, text: str) -> None:
    assert format_rate(rate) == text


def test_names_in_addresses_are_quoted_and_queries_stay() -> None:
    assert build_url('/projects/a b"<') == "/console/projects/a%20b%22%3C"
    assert build_url("/x?next=%2Fy") == "/console/x?next=%2Fy"
