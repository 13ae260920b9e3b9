"""What reading and writing files of a disk promises besides."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from serving.artifacts.storage import FileInfo, FileStore
from serving.errors import (
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
)
from tests.serving.artifacts.storage.places import MIB, put


@contextmanager
def nobody() -> Iterator[None]:
    """Root may do everything, so it acts as somebody else."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.fixture
def locked() -> Iterator[Path]:
    """A folder that nobody may write to, with a file that nobody may read."""
    # Not in `tmp_path`: only its owner may enter the folders that it lies in.
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent, "locked")
        put(f"{folder}/a", b"1")
        (folder / "a").chmod(0)
        folder.chmod(0o555)
        Path(parent).chmod(0o711)
        yield folder
        folder.chmod(0o755)


def test_a_refusal_of_the_disk(files: FileStore, locked: Path) -> None:
    """What may not be read or written is PermissionDenied, and says what it is."""
    folder = locked
    item = FileInfo(f"{folder}/a", 1, "", gzip=False)
    actions: list[Callable[[], object]] = [
        lambda: files.glob(f"{folder}/a"),
        lambda: files.glob(f"{folder}/*"),
        lambda: files.open(item),
        lambda: files.read(f"{folder}/a"),
        lambda: files.write(f"{folder}/b", b""),
        lambda: files.write(f"{folder}/b/c", b""),
        lambda: files.create_if_absent(f"{folder}/b", b""),
        lambda: files.move(f"{folder}/a", f"{folder}/b"),
        lambda: files.delete(f"{folder}/a"),
        lambda: files.delete_folder(str(folder)),
    ]
    with nobody():
        for action in actions:
            with pytest.raises(PermissionDenied, match=r"The server may not (open|write) .*locked"):
                action()


def test_a_full_disk(files: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """ResourceExhausted says which file has no room; nothing of it is left."""
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("needs /dev/full")
    folder = Path("/dev/shm")
    name = uuid.uuid4()
    monkeypatch.setattr(uuid, "uuid4", lambda: name)
    partial = folder / f".pilotlight-test.{name.hex}.part"
    partial.symlink_to(full)
    try:
        with (
            pytest.raises(ResourceExhausted, match="There is no room for /dev/shm/pilotlight-test: No space"),
            files.create(str(folder / "pilotlight-test")) as file,
        ):
            file.write(b"x" * 3 * MIB)

        assert not partial.is_symlink()
        assert not (folder / "pilotlight-test").exists()
    finally:
        partial.unlink(missing_ok=True)


def test_a_file_where_a_folder_is_needed(files: FileStore, tmp_path: Path) -> None:
    """And a folder where a file is: both are named."""
    put(f"{tmp_path}/a", b"1")
    put(f"{tmp_path}/folder/b", b"1")

    for uri in (f"{tmp_path}/a/b", f"{tmp_path}/a/b/c"):
        with pytest.raises(InvalidArgument, match=r"a is a file|not in or no folder"):
            files.write(uri, b"")
    with pytest.raises(InvalidArgument, match="folder is a folder; expected a file"):
        files.write(f"{tmp_path}/folder", b"")
    with pytest.raises(InvalidArgument, match="folder is a folder; expected a file"):
        files.delete(f"{tmp_path}/folder")
    with pytest.raises(InvalidArgument, match="a is not in or no folder"):
        files.delete_folder(f"{tmp_path}/a")


def test_links_are_followed(files: FileStore, tmp_path: Path) -> None:
    """A link is found under its own name; one that leads nowhere is an error that names it."""
    put(f"{tmp_path}/blobs/1", b"one")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a").symlink_to("../blobs/1")
    found = files.glob(f"{tmp_path}/in/*")
    (tmp_path / "in/b").symlink_to("gone")

    assert [(item.uri, item.size) for item in found] == [(f"{tmp_path}/in/a", 3)]
    with pytest.raises(InvalidArgument, match="in/b is a symbolic link to gone, which does not exist"):
        files.glob(f"{tmp_path}/in/*")


def test_a_pipe_is_no_file(files: FileStore, tmp_path: Path) -> None:
    """Reading it could wait for ever."""
    os.mkfifo(tmp_path / "pipe")

    for pattern in ("pipe", "*"):
        with pytest.raises(InvalidArgument, match="pipe is not a regular file"):
            files.glob(f"{tmp_path}/{pattern}")


def test_a_file_uri_and_a_relative_path(
    files: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are found under their absolute path."""
    put(f"{tmp_path}/my folder/a", b"1")
    monkeypatch.chdir(tmp_path)

    for pattern in ("my folder/*", "my folder/a", f"file://{tmp_path}/my%20folder/*"):
        assert [item.uri for item in files.glob(pattern)] == [f"{tmp_path}/my folder/a"]


def test_a_change_is_noticed_when_a_part_was_read(files: FileStore, tmp_path: Path) -> None:
    """Who stops before the end is told when closing."""
    put(f"{tmp_path}/a", b"old")
    (item,) = files.glob(f"{tmp_path}/a")

    file = files.open(item)
    file.read(1)
    with (tmp_path / "a").open("ab") as other:
        other.write(b"more")

    with pytest.raises(Unavailable, match="replaced or removed"):
        file.close()
    assert file.closed


def test_a_killed_writer_leaves_what_nobody_lists(files: FileStore, tmp_path: Path) -> None:
    """What it had not finished is no file, and goes with its folder."""
    script = f"""
import os
from serving.artifacts.storage import FileStore
with FileStore().create({str(tmp_path / "in/a")!r}) as file:
    file.write(b"x" * 2_000_000)
    os._exit(1)
"""
    subprocess.run([sys.executable, "-c", script], check=False)

    assert len(list((tmp_path / "in").iterdir())) == 1
    assert files.list(str(tmp_path)) == []
    with pytest.raises(NotFound):
        files.glob(f"{tmp_path}/in/*")
    files.delete_folder(str(tmp_path / "in"))
    assert list(tmp_path.iterdir()) == []


def test_disks_need_no_storage_client(tmp_path: Path) -> None:
    """google.cloud.storage is imported when a gs:// URI is touched, not before."""
    script = f"""
import sys
from serving.artifacts.storage import FileStore
files = FileStore()
files.write({str(tmp_path / "a")!r}, b"1")
files.open(*files.glob({str(tmp_path / "*")!r})).close()
assert not {{'google.cloud.storage', 'google.auth', 'requests'}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True)
