from __future__ import annotations

import datetime
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from serving.gateway.audit.log_folder import AuditLogFolder, list_log_files
from tests.bounds import HANG_SECONDS

DAY = datetime.date(2030, 1, 2)
NEXT = datetime.date(2030, 1, 3)

# Adds its number, many times, each time two lines.
ADDER = """
import datetime, sys
from pathlib import Path
from serving.gateway.audit.log_folder import AuditLogFolder
folder = AuditLogFolder(Path(sys.argv[1]))
for _ in range(50):
    folder.append([sys.argv[2].encode() * 3000 + b"\\n"] * 2, datetime.date(2030, 1, 2))
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "audit"


@contextmanager
def no_larger_than(size: int) -> Iterator[None]:
    """A disk with so much space in each file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_lines_are_added_to_the_file_of_their_day(path: Path) -> None:
    """Oldest day first."""
    folder = AuditLogFolder(path)
    folder.append([b"1\n"], DAY)
    folder.append([b"2\n", b"3\n"], DAY)
    folder.append([b"4\n"], NEXT)
    folder.close()

    assert [file.name for file in list_log_files(path)] == ["2030-01-02.jsonl", "2030-01-03.jsonl"]
    assert [file.read_bytes() for file in list_log_files(path)] == [b"1\n2\n3\n", b"4\n"]


def test_only_its_owner_may_read_it(path: Path) -> None:
    """The folder and the files."""
    folder = AuditLogFolder(path)
    folder.append([b"1\n"], DAY)
    folder.close()

    assert path.stat().st_mode & 0o777 == 0o700
    assert list_log_files(path)[0].stat().st_mode & 0o777 == 0o600


def test_a_torn_line_does_not_spoil_the_next(path: Path) -> None:
    """What a stopped machine left half written stays alone on its line."""
    path.mkdir(parents=True)
    (path / f"{DAY}.jsonl").write_bytes(b'{"half":')
    folder = AuditLogFolder(path)
    folder.append([b"1\n"], DAY)
    folder.close()

    assert list_log_files(path)[0].read_bytes() == b'{"half":\n1\n'


def test_a_full_disk_leaves_no_part_of_a_line(path: Path) -> None:
    """Nothing of it is there; when there is space again, the next line is."""
    folder = AuditLogFolder(path)
    folder.append([b"1\n"], DAY)
    with no_larger_than(100), pytest.raises(OSError):
        folder.append([b"2" * 200 + b"\n"], DAY)
    folder.append([b"3\n"], DAY)
    folder.close()

    assert list_log_files(path)[0].read_bytes() == b"1\n3\n"


def test_old_days_are_forgotten(path: Path) -> None:
    """When a new day begins; files that are not ours are left alone."""
    path.mkdir(parents=True)
    for name in ("2029-12-31.jsonl", "2030-01-01.jsonl", "notes.txt"):
        (path / name).write_text("x\n")
    folder = AuditLogFolder(path, retention_days=1)
    folder.append([b"1\n"], DAY)
    folder.close()

    assert sorted(os.listdir(path)) == ["2030-01-01.jsonl", "2030-01-02.jsonl", "notes.txt"]  # noqa: PTH208


def test_a_file_that_was_moved_away_is_made_anew(path: Path) -> None:
    """Lines do not vanish into a file that nobody sees."""
    folder = AuditLogFolder(path)
    folder.append([b"1\n"], DAY)
    list_log_files(path)[0].unlink()
    folder.append([b"2\n"], DAY)
    folder.close()

    assert list_log_files(path)[0].read_bytes() == b"2\n"


def test_processes_may_add_at_the_same_time(path: Path) -> None:
    """Each line is whole and stands beside the one it came with."""
    adders = [subprocess.Popen([sys.executable, "-c", ADDER, str(path), name]) for name in "abc"]
    assert [adder.wait(timeout=HANG_SECONDS) for adder in adders] == [0, 0, 0]

    lines = list_log_files(path)[0].read_text().splitlines()
    assert sorted(lines) == sorted(name * 3000 for name in "abc" for _ in range(100))
    assert all(first == second for first, second in zip(lines[::2], lines[1::2], strict=True))
