from __future__ import annotations

import pytest

from serving.http_headers import select_headers

WANTED = frozenset({b"x-a", b"x-b"})


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ([], {}),
        ([(b"host", b"h")], {}),
        ([(b"host", b"h"), (b"x-b", b"2"), (b"x-c", b"3"), (b"x-a", b"1")], {b"x-a": b"1", b"x-b": b"2"}),
        ([(b"x-a", b"1"), (b"x-a", b"2")], {b"x-a": b"2"}),
    ],
    ids=["none", "others", "several", "repeated"],
)
def test_the_headers_that_are_wanted(given: list[tuple[bytes, bytes]], found: dict[bytes, bytes]) -> None:
    """Those and no others; of a repeated one the last counts."""
    assert select_headers({"headers": given}, WANTED) == found
