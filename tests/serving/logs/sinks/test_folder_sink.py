"""Logs in folders."""

from __future__ import annotations

import json
import os
import resource
import secrets
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from serving.artifacts.local_folder_policy import LocalFolderPolicy
from serving.errors import FailedPrecondition
from serving.logs.journal import JournalRecord, LogKind
from serving.logs.sinks.folder_sink import FolderSink, StdoutSink, TeeSink
from tests.serving.logs.sinks.records import DAY, NOON, entry, record


class Sinks:
    """A sink whose clock the test sets."""

    def __init__(
        self, folder: Path, kind: LogKind = LogKind.REQUESTS, *, rotate_bytes: int = 1 << 20, journal: int = 7
    ) -> None:
        self.now = 0.0
        self.folder = folder
        self.sink = FolderSink(
            folder,
            kind,
            journal=journal,
            rotate_bytes=rotate_bytes,
            rotate_seconds=60,
            clock=lambda: self.now,
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
    folders = LocalFolderPolicy.from_setting(f"{tmp_path}/open", state)
    sink = FolderSink(
        tmp_path / "open", LogKind.REQUESTS, journal=7, rotate_bytes=1, rotate_seconds=60, folders=folders
    )
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
    sink = FolderSink(tmp_path, LogKind.CONSOLE, journal=7, rotate_bytes=1 << 20, rotate_seconds=60)
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


def snapshot(*files: Path) -> list[tuple[bytes, int]]:
    return [(file.read_bytes(), file.stat().st_mtime_ns) for file in files]


def test_what_others_write_there_is_left_alone(tmp_path: Path) -> None:
    """Half a line in a file of another program or another server is theirs, whatever its name and its age."""
    Sinks(tmp_path).write(1)
    Sinks(tmp_path, journal=8).write(2)
    (ours,) = tmp_path.glob(f"{DAY}/*-00000007-*")
    (others,) = tmp_path.glob(f"{DAY}/*-00000008-*")
    precious = tmp_path / "precious"
    program, link, hard = (
        tmp_path / DAY / name for name in ("x.jsonl", "1-00000007-1.jsonl", "2-00000007-2.jsonl")
    )
    for path in (program, others, precious):
        with path.open("a") as file:
            file.write('{"half')
    before = snapshot(program, others, precious)
    link.symlink_to(precious)
    Sinks(tmp_path).write(3)
    link.unlink()
    hard.hardlink_to(precious)
    Sinks(tmp_path).write(4)

    assert snapshot(program, others, precious) == before
    hard.unlink()
    program.unlink()
    others.unlink()
    assert Sinks(tmp_path).files() == [["1"], ["3"], ["4"]]
    assert ours.exists()


@pytest.mark.parametrize("kind", ["file", "link", "pipe"])
def test_a_name_that_is_taken_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Neither for a new file nor instead of ours, which is gone; the records come with the next try."""
    monkeypatch.setattr(secrets, "token_hex", lambda _: "1")
    taken, precious = tmp_path / DAY / "120000-00000007-1.jsonl", tmp_path / "precious"
    precious.write_text("all")

    def take() -> None:
        match kind:
            case "file":
                taken.write_text("all\n")
            case "link":
                taken.symlink_to(precious)
            case "pipe":
                os.mkfifo(taken)

    taken.parent.mkdir()
    take()
    sinks = Sinks(tmp_path)
    with pytest.raises(OSError, match="exists"):
        sinks.write(1)
    taken.unlink()
    sinks.write(1)
    taken.rename(tmp_path / "moved")
    take()
    with pytest.raises(OSError):
        sinks.write(2)
    monkeypatch.undo()
    sinks.write(2)

    assert kind != "file" or taken.read_text() == "all\n"
    assert precious.read_text() == "all"
    taken.unlink()
    assert sinks.files() == [["2"]]


def test_what_others_append_to_our_file_stays(tmp_path: Path) -> None:
    """Though a write after it fails."""
    sinks = Sinks(tmp_path)
    sinks.write(1)
    (file,) = tmp_path.rglob("*.jsonl")
    with file.open("a") as stream:
        stream.write('{"raw_data": "theirs"}\n')
    (tmp_path / "dt=2030-01-03").write_text("no folder")
    with pytest.raises(OSError, match="exists"):
        sinks.sink.write([record(2), record(3, time=NOON + 24 * 3600)], "key")

    assert [json.loads(line)["raw_data"] for line in file.read_text().splitlines()] == ["1", "theirs", "2"]


def test_one_folder_has_several_writers(tmp_path: Path) -> None:
    """Processes that are killed amid writes and begin again, beside a program that writes half lines."""
    code = """
import sys, time
from pathlib import Path
from serving.logs.journal import LogKind
from serving.logs.sinks.folder_sink import FolderSink
from tests.serving.logs.sinks.records import NOON, record
journal, first = int(sys.argv[2]), int(sys.argv[3])
limits = {"rotate_bytes": 20 << 20, "rotate_seconds": 60}
sink = FolderSink(Path(sys.argv[1]), LogKind.REQUESTS, journal=journal, **limits)
for number in range(first, first + 1000):
    sink.write([record(number, b"x" * 1_000_000) for _ in range(4)], "key")
    print(number, flush=True)
"""
    program = tmp_path / DAY / "program.jsonl"
    program.parent.mkdir()
    program.write_text('{"half')

    def start(journal: int, first: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code, str(tmp_path), str(journal), str(first)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[4])

    for start_at in range(0, 3000, 1000):
        with start(7, start_at) as first, start(8, start_at) as second:
            assert first.stdout is not None
            assert second.stdout is not None
            for _ in range(5):
                first.stdout.readline()
                second.stdout.readline()
            with program.open("a") as file:
                file.write(str(start_at))
            first.kill()
            second.kill()
    for journal in (7, 8):
        Sinks(tmp_path, journal=journal).write(1)  # what comes again

    assert program.read_text() == '{"half010002000'
    files = [file for file in tmp_path.rglob("*.jsonl") if file != program]
    rows = [json.loads(line) for file in files for line in file.read_bytes().splitlines()]
    # A writer that is killed before its first write to a new file leaves it empty.
    assert all(lines.endswith(b"\n") for file in files if (lines := file.read_bytes()))
    assert len(rows) >= 3 * 2 * 5 * 4


def test_both_get_all(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """A log in a folder can be on standard output too."""
    folder = FolderSink(tmp_path, LogKind.CONSOLE, journal=7, rotate_bytes=1 << 20, rotate_seconds=60)
    records: Sequence[JournalRecord] = [entry(1), entry(2)]
    TeeSink(folder, StdoutSink(LogKind.CONSOLE)).write(records, "key")

    (file,) = tmp_path.rglob("*.jsonl")
    assert capfdbinary.readouterr().out == file.read_bytes() != b""
