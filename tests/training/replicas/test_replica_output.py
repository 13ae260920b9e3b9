"""Cutting output into lines."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from training.replicas.replica_output import LineReader


@pytest.fixture
def pipe() -> Iterator[tuple[LineReader, int]]:
    reading, writing = os.pipe2(os.O_NONBLOCK)
    yield LineReader(reading), writing
    os.close(reading)


def test_lines_are_complete_before_they_are_read(pipe: tuple[LineReader, int]) -> None:
    reader, fd = pipe
    os.write(fd, b"one\ntw")
    assert reader.read_lines() == ["one"]
    assert reader.read_lines() is None

    os.write(fd, b"o\n\nrest")
    os.close(fd)
    assert list(reader.drain()) == [["two", ""], ["rest"]]
    assert reader.at_end


def test_of_a_progress_bar_the_last_state_is_left(pipe: tuple[LineReader, int]) -> None:
    reader, fd = pipe
    os.write(fd, b"10 %\r50 %\r100 %\r\n\xff\n")
    os.close(fd)

    assert reader.read_lines() == ["100 %", "\N{REPLACEMENT CHARACTER}"]


def test_a_line_without_end_comes_in_pieces(pipe: tuple[LineReader, int]) -> None:
    reader, fd = pipe
    pieces: list[str] = []
    for _ in range(8):
        os.write(fd, b"x" * (1 << 14))
        pieces += reader.read_lines() or []
    os.close(fd)
    pieces += [line for lines in reader.drain() for line in lines]

    assert "".join(pieces) == "x" * (1 << 17)
    assert max(map(len, pieces)) <= 1 << 17
    assert len(pieces) > 1
