"""Reading logs in folders."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from serving.errors import InvalidArgument
from serving.gateway.observability import log_reader
from serving.gateway.observability.log_reader import LogPage, LogReader


class World:
    """A folder of logs, and what is in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = LogReader(folder, lambda heading: heading.model == "m")

    def write(self, name: str, *numbers: int, model: str = "m") -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            for number in numbers:
                time = f"2030-01-{name[-2 - len('/1.jsonl') : -len('/1.jsonl')]}T00:00:{number:02d}.000000Z"
                file.write(json.dumps({"time": time, "model": model, "number": number}) + "\n")


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.write("dt=2030-01-01/1.jsonl", 1, 2)
    world.write("dt=2030-01-01/2.jsonl", 3, 4)
    world.write("dt=2030-01-02/1.jsonl", 5)
    world.write("dt=2030-01-02/1.jsonl", 6, model="other")
    world.write("dt=2030-01-02/1.jsonl", 7)
    return world


def numbers(page: LogPage) -> list[Any]:
    return [entry["number"] for entry in page.entries]


@pytest.mark.parametrize(
    ("limit", "since", "expected"),
    [
        (100, "", [1, 2, 3, 4, 5, 7]),
        (3, "", [4, 5, 7]),
        (1, "", [7]),
        (100, "2030-01-01T00:00:02.000000Z", [2, 3, 4, 5, 7]),
        (100, "2030-01-02T00:00:00.000000Z", [5, 7]),
        (100, "2030-01-03T00:00:00.000000Z", []),
    ],
)
def test_the_last_entries(world: World, limit: int, since: str, expected: list[int]) -> None:
    """Of the version that is asked about, oldest first, over files and days."""
    assert numbers(world.files.read_last(limit, since)) == expected


def test_what_comes_after_them(world: World) -> None:
    """Each entry once, also in files that are new, and half a line only once it is whole."""
    page = world.files.read_last(1)
    again = world.files.read_after(page.cursor, 10)
    assert numbers(again) == []
    world.write("dt=2030-01-02/1.jsonl", 8, 9)
    world.write("dt=2030-01-03/1.jsonl", 10)
    with (world.folder / "dt=2030-01-03/1.jsonl").open("a") as file:
        file.write('{"time": "2030-01-03T00:00:11.000000Z", ')
    two = world.files.read_after(again.cursor, 2)
    rest = world.files.read_after(two.cursor, 10)
    assert (numbers(two), numbers(rest)) == ([8, 9], [10])
    with (world.folder / "dt=2030-01-03/1.jsonl").open("a") as file:
        file.write('"model": "m", "number": 11}\n')

    assert numbers(world.files.read_after(rest.cursor, 10)) == [11]


def test_from_the_beginning(tmp_path: Path) -> None:
    """Where there was no log yet."""
    world = World(tmp_path / "none")
    page = world.files.read_last(10)
    assert numbers(page) == numbers(world.files.read_after(page.cursor, 10)) == []
    world.write("dt=2030-01-01/1.jsonl", 1)

    assert numbers(world.files.read_after(page.cursor, 10)) == [1]


def pages(files: LogReader, limit: int = 100, since: str = "") -> list[LogPage]:
    """All pages of a log, the newest first."""
    found = [files.read_last(limit, since)]
    while token := found[-1].next_page_token:
        found.append(files.read_last(limit, since, token))
    return found


@pytest.mark.parametrize("block", [1, 7, 1 << 16])
@pytest.mark.parametrize(
    ("name", "bound"), [("_MAX_PAGE_BYTES", 100), ("_MAX_READ_BYTES", 100), ("_MAX_SECONDS", 0.0)]
)
def test_an_answer_is_bounded(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str, bound: float, block: int
) -> None:
    """In bytes found, in bytes read and in time, but for a single line; the rest comes with the next ones."""
    monkeypatch.setattr(log_reader, name, bound)
    monkeypatch.setattr(log_reader, "_BLOCK", block)
    back = pages(world.files)
    there: list[LogPage] = [world.files.read_after("begin", 100)]
    while (page := world.files.read_after(there[-1].cursor, 100)).cursor != there[-1].cursor:
        there.append(page)

    for several in (back, there):
        assert len(several) > 2
        assert all(len(page.entries) <= 2 for page in several)
    assert [number for page in reversed(back) for number in numbers(page)] == [1, 2, 3, 4, 5, 7]
    assert [number for page in there for number in numbers(page)] == [1, 2, 3, 4, 5, 7]


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_pages_go_back_to_the_beginning(world: World, limit: int) -> None:
    """Each entry once, whatever comes meanwhile; no further than is asked for."""
    first = world.files.read_last(limit)
    world.write("dt=2030-01-02/1.jsonl", 8)
    world.write("dt=2030-01-03/1.jsonl", 9)
    found, page = numbers(first), first
    while page.next_page_token:
        page = world.files.read_last(limit, "", page.next_page_token)
        assert len(page.entries) <= limit
        found[:0] = numbers(page)

    assert found == [1, 2, 3, 4, 5, 7]
    assert numbers(world.files.read_after(first.cursor, 10)) == [8, 9]
    late = pages(world.files, limit, "2030-01-02T00:00:00.000000Z")
    assert [number for page in reversed(late) for number in numbers(page)] == [5, 7, 8, 9]


def test_what_is_too_old_is_not_read(world: World) -> None:
    """Days before the time that is asked for are none of its cost; what comes is told all the same."""
    (world.folder / "dt=2030-01-01" / "1.jsonl").unlink()
    os.mkfifo(world.folder / "dt=2030-01-01" / "0.jsonl")
    page = world.files.read_last(10, "2030-01-03T00:00:00.000000Z")
    world.write("dt=2030-01-03/1.jsonl", 9)

    assert (numbers(page), page.next_page_token) == ([], "")
    assert numbers(world.files.read_after(page.cursor, 10)) == [9]


def test_a_cancelled_read_ends(world: World) -> None:
    """At the next line, with what it has; it goes on from there."""
    files = LogReader(world.folder, lambda heading: heading.model == "m", lambda: True)
    page = files.read_last(10)

    assert numbers(page) == []
    assert numbers(world.files.read_last(10, "", page.next_page_token)) == [1, 2, 3, 4, 5, 7]


def test_a_line_without_an_end_is_not_held(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of whatever else, however long; what is before and after it is found."""
    monkeypatch.setattr(log_reader, "_MAX_LINE", 4000)
    monkeypatch.setattr(log_reader, "_BLOCK", 1000)
    (world.folder / "dt=2030-01-02" / "0.jsonl").write_bytes(b"x" * 100_000)

    assert numbers(world.files.read_last(100)) == [1, 2, 3, 4, 5, 7]
    assert numbers(world.files.read_after("begin", 100)) == [1, 2, 3, 4, 5, 7]


def test_only_files_are_read(world: World) -> None:
    """No pipe is waited for, and no link followed."""
    os.mkfifo(world.folder / "dt=2030-01-02" / "2.jsonl")
    (world.folder / "dt=2030-01-02" / "3.jsonl").symlink_to("1.jsonl")
    (world.folder / "dt=2030-01-02" / "4.jsonl").mkdir()

    assert numbers(world.files.read_last(100)) == [1, 2, 3, 4, 5, 7]
    assert numbers(world.files.read_after("begin", 100)) == [1, 2, 3, 4, 5, 7]


def test_other_files_are_no_log(world: World) -> None:
    """Nor are lines that are none."""
    (world.folder / "dt=2030-01-02" / "1.txt").write_text("{}")
    (world.folder / "dt=2030-01-02" / "2.jsonl").write_text(
        'no\n[1]\n{"a": 1}\n{"time": 1}\n'
        + '{"time": "2030-01-02", "model": "m", "a": '
        + "[" * 10_000
        + "\n"
    )

    assert numbers(world.files.read_last(100)) == [1, 2, 3, 4, 5, 7]


@pytest.mark.parametrize(
    "cursor", ["x", "../../etc/passwd:0", "dt=2030-01-01/../x.jsonl:1", "dt=2030-01-01/1.jsonl"]
)
def test_a_cursor_is_nothing_else(world: World, cursor: str) -> None:
    """It names no other file."""
    with pytest.raises(InvalidArgument, match="cursor"):
        world.files.read_after(cursor, 1)
    with pytest.raises(InvalidArgument, match="page_token"):
        world.files.read_last(1, "", cursor)
