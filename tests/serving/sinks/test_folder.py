"""Logs in folders."""

from __future__ import annotations

import json
import resource
from collections.abc import Sequence
from pathlib import Path

import pytest

from serving.errors import FailedPrecondition
from serving.journal import Kind, Record
from serving.local_folders import LocalFolders
from serving.sinks.folder import Both, FolderSink, StdoutSink
from tests.serving.sinks.records import DAY, NOON, entry, record


class Sinks:
    """A sink whose clock the test sets."""

    def __init__(self, folder: Path, kind: Kind = Kind.REQUESTS, *, rotate_bytes: int = 1 << 20) -> None:
        self.now = 0.0
        self.folder = folder
        self.sink = FolderSink(
            folder, kind, rotate_bytes=rotate_bytes, rotate_seconds=60, clock=lambda: self.now
        )

    def write(self, *numbers: int, time: float = NOON) -> None:
        assert self.sink.write([record(number, time=time) for number in numbers], "key") == 0

    def files(self) -> list[list[str]]:
        """What is in each file, in the order of their last lines."""
        found = [
            [json.loads(line)["raw_data"] for line in path.read_text().splitlines()]
            for path in self.folder.rglob("*.jsonl")
        ]
        return sorted(found, key=lambda rows: int(rows[-1]))


def test_a_folder_that_is_not_open_gets_nothing(tmp_path: Path) -> None:
    """Also when a link is put in the place of its folder after it was allowed; the records wait."""
    state = tmp_path / "state"
    state.mkdir()
    folders = LocalFolders.read(f"{tmp_path}/open", state)
    sink = FolderSink(tmp_path / "open", Kind.REQUESTS, rotate_bytes=1, rotate_seconds=60, folders=folders)
    sink.write([record(1)], "key")
    (tmp_path / "open").rename(tmp_path / "moved")
    (tmp_path / "open").symlink_to(state)

    with pytest.raises(FailedPrecondition, match="state folder"):
        sink.write([record(2)], "key")
    assert list(state.iterdir()) == []


def test_a_day_has_a_folder(tmp_path: Path) -> None:
    """By the time of the request in UTC, whenever it is written."""
    sinks = Sinks(tmp_path)
    sinks.write(1, time=NOON - 12 * 3600 - 1)
    sinks.write(2, time=NOON)
    sinks.write(3, time=NOON + 12 * 3600 - 1)

    assert {path.name for path in tmp_path.iterdir()} == {"dt=2030-01-01", DAY}
    assert sinks.files() == [["1"], ["2", "3"]]
    assert all(path.name.startswith(("235959-", "120000-")) for path in tmp_path.rglob("*.jsonl"))


def test_files_end_by_size_and_by_time(tmp_path: Path) -> None:
    """The next record then begins another."""
    sinks = Sinks(tmp_path, rotate_bytes=400)
    sinks.write(1)
    sinks.write(2, 3)
    sinks.write(4)
    sinks.now = 59
    sinks.write(5)
    sinks.now = 61
    sinks.write(6)

    assert sinks.files() == [["1", "2", "3"], ["4", "5"], ["6"]]


def test_versions_have_folders_of_their_own(tmp_path: Path) -> None:
    """In the logs of the server itself; each line is known by its id."""
    sink = FolderSink(tmp_path, Kind.CONSOLE, rotate_bytes=1 << 20, rotate_seconds=60)
    other = "projects/p/models/m/versions/w"
    sink.write([entry(1), entry(2, name=other), entry(3)], "key")

    (file,) = (tmp_path / "p" / "m" / "v" / DAY).iterdir()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    told = [(line["message"], line["logging.googleapis.com/insertId"]) for line in lines]
    assert told == [("1", f"{1:032x}"), ("3", f"{3:032x}")]
    assert len(list((tmp_path / "p" / "m" / "w").rglob("*.jsonl"))) == 1


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    """What could not be written whole is not there at all, in no file, and comes with the next try."""
    sinks = Sinks(tmp_path)
    sinks.write(1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            sinks.sink.write(
                [record(2, time=NOON + 24 * 3600), *[record(number) for number in range(3, 20)]], "key"
            )
        assert sinks.files() == [["1"]]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    sinks.write(2)

    assert sinks.files() == [["1"], ["2"]]


def test_a_folder_that_is_gone_is_made_again(tmp_path: Path) -> None:
    """Somebody tidied up."""
    sinks = Sinks(tmp_path / "logs")
    sinks.write(1)
    for path in (tmp_path / "logs" / DAY).iterdir():
        path.unlink()
    (tmp_path / "logs" / DAY).rmdir()
    with pytest.raises(OSError, match="No such file"):
        sinks.write(2)
    sinks.write(2)

    assert sinks.files() == [["2"]]


def test_half_a_line_is_cut_off(tmp_path: Path) -> None:
    """That of a writer that was killed over it, before anything else is written."""
    Sinks(tmp_path).write(1, 2)
    (file,) = tmp_path.rglob("*.jsonl")
    with file.open("a") as half:
        half.write('{"model": "m", "raw_data": "3')
    sinks = Sinks(tmp_path)
    sinks.write(3)

    assert sinks.files() == [["1", "2"], ["3"]]


def test_both_get_all(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """A log in a folder can be on standard output too."""
    folder = FolderSink(tmp_path, Kind.CONSOLE, rotate_bytes=1 << 20, rotate_seconds=60)
    records: Sequence[Record] = [entry(1), entry(2)]
    Both(folder, StdoutSink(Kind.CONSOLE)).write(records, "key")

    (file,) = tmp_path.rglob("*.jsonl")
    assert capfdbinary.readouterr().out == file.read_bytes() != b""
