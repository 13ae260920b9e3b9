"""Reading logs in folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from serving.errors import InvalidArgument
from serving.gateway import log_files
from serving.gateway.log_files import LogFiles, Page


class World:
    """A folder of logs, and what is in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = LogFiles(folder, lambda entry: entry["model"] == "m")

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


def numbers(page: Page) -> list[Any]:
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
    assert numbers(world.files.last(limit, since)) == expected


def test_what_comes_after_them(world: World) -> None:
    """Each entry once, also in files that are new, and half a line only once it is whole."""
    page = world.files.last(1)
    again = world.files.after(page.cursor, 10)
    assert numbers(again) == []
    world.write("dt=2030-01-02/1.jsonl", 8, 9)
    world.write("dt=2030-01-03/1.jsonl", 10)
    with (world.folder / "dt=2030-01-03/1.jsonl").open("a") as file:
        file.write('{"time": "2030-01-03T00:00:11.000000Z", ')
    two = world.files.after(again.cursor, 2)
    rest = world.files.after(two.cursor, 10)
    assert (numbers(two), numbers(rest)) == ([8, 9], [10])
    with (world.folder / "dt=2030-01-03/1.jsonl").open("a") as file:
        file.write('"model": "m", "number": 11}\n')

    assert numbers(world.files.after(rest.cursor, 10)) == [11]


def test_from_the_beginning(tmp_path: Path) -> None:
    """Where there was no log yet."""
    world = World(tmp_path / "none")
    page = world.files.last(10)
    assert numbers(page) == numbers(world.files.after(page.cursor, 10)) == []
    world.write("dt=2030-01-01/1.jsonl", 1)

    assert numbers(world.files.after(page.cursor, 10)) == [1]


def test_an_answer_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bytes too, but for a single line; the rest comes with the next one."""
    monkeypatch.setattr(log_files, "_BYTES", 100)
    assert numbers(world.files.last(100)) == [7]
    found: list[int] = []
    cursor = "begin"
    for _ in range(4):
        page = world.files.after(cursor, 100)
        assert len(page.entries) <= 2
        found += numbers(page)
        cursor = page.cursor

    assert found == [1, 2, 3, 4, 5, 7]


def test_other_files_are_no_log(world: World) -> None:
    """Nor are lines that are none."""
    (world.folder / "dt=2030-01-02" / "1.txt").write_text("{}")
    (world.folder / "dt=2030-01-02" / "2.jsonl").write_text('no\n[1]\n{"a": 1}\n{"time": 1}\n')

    assert numbers(world.files.last(100)) == [1, 2, 3, 4, 5, 7]


@pytest.mark.parametrize(
    "cursor", ["x", "../../etc/passwd:0", "dt=2030-01-01/../x.jsonl:1", "dt=2030-01-01/1.jsonl"]
)
def test_a_cursor_is_nothing_else(world: World, cursor: str) -> None:
    """It names no other file."""
    with pytest.raises(InvalidArgument, match="cursor"):
        world.files.after(cursor, 1)
