"""The process that packs and fetches versions, with folders and buckets, damage, kills and full disks."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from serving.artifacts import shared_versions
from serving.artifacts.shared_versions import (
    FetchRequest,
    InstallSettings,
    LocalFiles,
    PublishRequest,
    RemoveRequest,
    SharingReport,
    SharingRequest,
    fetch_version,
    list_packs,
    publish_version,
    read_local_files_record,
    remove_packs,
)
from serving.artifacts.storage import FileStore
from serving.errors import FailedPrecondition, NotFound, Unavailable
from tests.emulator import Emulator
from tests.server import until
from tests.serving.artifacts.test_packages import sdist

COMMAND = (sys.executable, "-m", "serving.artifacts.shared_versions")
UID = "0123456789abcdef"


@pytest.fixture(params=["folder", "bucket"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where packs are."""
    if request.param == "folder":
        return str(tmp_path / "shared")
    emulator: Emulator = request.getfixturevalue("emulator")
    return f"gs://{emulator.bucket()}/shared"


@pytest.fixture
def files() -> FileStore:
    return FileStore(retry_seconds=5)


def code(tmp_path: Path) -> InstallSettings:
    return InstallSettings("", "", str(tmp_path / "cache"), 1 << 30, 60.0)


def make_version(tmp_path: Path, size: int = 10, server: str = "a") -> Path:
    folder = tmp_path / server / "versions" / UID
    (folder / "model").mkdir(parents=True)
    (folder / "model/model.bst").write_bytes(os.urandom(size))
    return folder


def publishing(folder: Path, uri: str, tmp_path: Path, **local: object) -> PublishRequest:
    given = LocalFiles(pack="", **local)  # type: ignore[arg-type]
    return PublishRequest(folder=str(folder), uri=f"{uri}/{UID}", local=given, code=code(tmp_path))


def fetching(local: LocalFiles, uri: str, tmp_path: Path) -> FetchRequest:
    """On another server."""
    folder = tmp_path / "b" / "versions" / UID
    return FetchRequest(folder=str(folder), uri=f"{uri}/{UID}", local=local, code=code(tmp_path))


@contextlib.contextmanager
def killed(request: SharingRequest, file: Path) -> Iterator[None]:
    """Run the process for the length of the block, then kill it."""
    file.write_bytes(msgspec.json.encode(request))
    with file.open() as given, subprocess.Popen(COMMAND, stdin=given, stdout=-3, stderr=-3) as process:
        yield
        process.kill()


def test_another_server_fetches_what_one_has_packed(uri: str, tmp_path: Path, files: FileStore) -> None:
    """And nothing is left of it when it is removed."""
    folder = make_version(tmp_path)
    local = publish_version(publishing(folder, uri, tmp_path), files)
    request = fetching(local, uri, tmp_path)

    assert fetch_version(request, files) == local == read_local_files_record(folder)
    there = Path(request.folder)
    assert (there / "model/model.bst").read_bytes() == (folder / "model/model.bst").read_bytes()
    assert read_local_files_record(there) == local
    assert list(list_packs(uri, files)) == [f"{UID}/{local.pack}"]
    # The same files make the same pack, also of a copy.
    assert publish_version(publishing(there, uri, tmp_path), files) == local

    remove_packs(RemoveRequest(uri, (UID,)), files)
    assert list(list_packs(uri, files)) == []
    with pytest.raises(NotFound, match=r"are not in .*shared_versions_uri"):
        fetch_version(request, files)


def test_a_damaged_pack_is_put_aside(uri: str, tmp_path: Path, files: FileStore) -> None:
    """So that it is made again; what was there before stays."""
    folder = make_version(tmp_path)
    local = publish_version(publishing(folder, uri, tmp_path), files)
    request = fetching(local, uri, tmp_path)
    (old := Path(request.folder) / "model").mkdir(parents=True)
    pack = f"{uri}/{UID}/{local.pack}.pack"
    *kept, last = files.read(pack)
    files.write(pack, bytes([*kept, last ^ 1]))

    with pytest.raises(Unavailable, match=r"is damaged: .* is kept as .*\.damaged"):
        fetch_version(request, files)

    assert [path.name for path in old.parent.parent.iterdir()] == [UID]
    assert list(old.parent.iterdir()) == [old]
    assert list(list_packs(uri, files)) == []
    publish_version(publishing(folder, uri, tmp_path), files)
    assert fetch_version(request, files) == local


def test_packages_for_another_machine_are_installed_anew(
    tmp_path: Path, files: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of their archives, which are in the pack; without them the error says what to do."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    folder, uri = make_version(tmp_path), str(tmp_path / "shared")
    (folder / "archives").mkdir()
    (folder / "code/packages").mkdir(parents=True)
    (folder / "code/packages/user.py").write_text("WHERE = 'there'\n")
    archive = sdist(tmp_path, "user", "py_modules=['user']", {"user.py": "WHERE = 'here'\n"})
    (folder / "archives" / archive.name).write_bytes(archive.read_bytes())
    request = publishing(folder, uri, tmp_path, packages=("code/packages",))
    local = publish_version(request, files)

    taken = fetch_version(fetching(local, uri, tmp_path), files)
    assert taken == local
    user = tmp_path / "b/versions" / UID / "code/packages/user.py"
    assert "there" in user.read_text()

    monkeypatch.setattr(shared_versions, "_describe_platform", lambda _: "Python 2.7 on a VAX")
    taken = fetch_version(fetching(local, uri, tmp_path), files)
    assert taken == msgspec.structs.replace(local, is_as_packed=False)
    assert "here" in user.read_text()

    (folder / "archives" / archive.name).unlink()
    monkeypatch.undo()
    local = publish_version(request, files)
    monkeypatch.setattr(shared_versions, "_describe_platform", lambda _: "Python 2.7 on a VAX")
    with pytest.raises(FailedPrecondition, match="same Python and libraries"):
        fetch_version(fetching(local, uri, tmp_path), files)


def test_a_kill_leaves_nothing_that_is_taken_for_whole(tmp_path: Path, files: FileStore) -> None:
    """Neither of a pack nor of what was unpacked; and the next one succeeds."""
    folder, uri = make_version(tmp_path, size=48 << 20), str(tmp_path / "shared")
    request = publishing(folder, uri, tmp_path)
    with killed(request, tmp_path / "request"):
        until(lambda: any(path.stat().st_size for path in Path(uri).rglob(".*.part")), "a pack")
    assert list(list_packs(uri, files)) == []
    assert read_local_files_record(folder) is None

    local = publish_version(request, files)
    fetch = fetching(local, uri, tmp_path)
    with killed(fetch, tmp_path / "request"):
        until(lambda: list(tmp_path.glob("b/versions/.*.part/model/*")), "a file")
    assert read_local_files_record(Path(fetch.folder)) is None

    assert fetch_version(fetch, files) == local
    assert [path.name for path in (tmp_path / "b/versions").iterdir()] == [UID]


def test_a_note_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """Code of a version may have replaced it, and others are looked for in the same threads."""
    folder = make_version(tmp_path)
    os.mkfifo(folder / "shared.json")
    assert read_local_files_record(folder) is None


def test_a_full_disk_leaves_nothing(tmp_path: Path, files: FileStore) -> None:
    folder, uri = make_version(tmp_path, size=2 << 20), str(tmp_path / "shared")
    local = publish_version(publishing(folder, uri, tmp_path), files)
    request = fetching(local, uri, tmp_path)

    limited = ("sh", "-c", 'ulimit -f 1024; exec "$@"', "sh", *COMMAND)
    ended = subprocess.run(limited, input=msgspec.json.encode(request), capture_output=True, check=True)

    failed = msgspec.json.decode(ended.stdout.splitlines()[-1], type=SharingReport).failed
    assert failed is not None
    assert failed.status == "UNAVAILABLE"
    assert "Free some space there; the next request tries again." in failed.message
    assert list((tmp_path / "b/versions").iterdir()) == []


def test_a_disk_that_will_be_full_is_not_filled(
    tmp_path: Path, files: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = str(tmp_path / "shared")
    local = publish_version(publishing(make_version(tmp_path), uri, tmp_path), files)
    monkeypatch.setattr(shared_versions, "_SPARE_BYTES", 1 << 62)
    with pytest.raises(Unavailable, match="There is no room"):
        fetch_version(fetching(local, uri, tmp_path), files)
