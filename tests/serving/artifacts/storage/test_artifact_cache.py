from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from serving.artifacts.storage import ArtifactFetcher
from serving.artifacts.storage.artifact_cache import ArtifactCache, HeldEntry
from serving.artifacts.storage.file_system import FileInfo
from tests.bounds import HANG_SECONDS
from tests.emulator import Answer, Emulator, Front
from tests.serving.artifacts.storage.artifacts import entries, fetching, make, tree

# ---- the cache


def test_two_processes_download_once(emulator: Emulator, front: Front, tmp_path: Path) -> None:
    """Two processes that fetch the same folder at the same time share one download, and both succeed."""
    uri = f"gs://{emulator.bucket()}/model"
    for number in range(5):
        emulator.put(f"{uri}/{number}", b"1")
    both = threading.Barrier(2)

    def answer(path: str, forward: Callable[[], Answer]) -> Answer:
        if "prefix=" in path:
            both.wait(HANG_SECONDS)
        elif "alt=media" in path:
            # Long enough for the other process to come to the lock.
            time.sleep(0.3)
        return forward()

    front.answer = answer
    outputs = [
        process.communicate(timeout=HANG_SECONDS) for process in [fetching(tmp_path, uri, n) for n in "ab"]
    ]

    assert outputs[0][0] == outputs[1][0] != ""
    assert len(front.downloads()) == 5
    assert tree(tmp_path / "a") == tree(tmp_path / "b") == {str(n): b"1" for n in range(5)}


def test_a_killed_fetch_leaves_no_rubbish_for_long(
    emulator: Emulator, front: Front, storage: ArtifactFetcher, tmp_path: Path
) -> None:
    """After a kill -9 half-way, the next fetch removes what was left, and the same fetch works."""
    uri = f"gs://{emulator.bucket()}/model"
    for number in range(5):
        emulator.put(f"{uri}/{number}", b"1")
    half_way, killed = threading.Event(), threading.Event()

    def answer(path: str, forward: Callable[[], Answer]) -> Answer:
        if "%2F3?" in path:
            half_way.set()
            killed.wait(HANG_SECONDS)
        return forward()

    front.answer = answer
    process = fetching(tmp_path, uri, "never")
    assert half_way.wait(HANG_SECONDS)
    process.kill()
    process.communicate()
    killed.set()
    partial = tmp_path / "cache/.partial"
    left = list(partial.iterdir())

    emulator.put(f"{uri} too/x", b"x")
    storage.fetch(f"{uri} too", tmp_path / "other copy")
    swept = list(partial.iterdir())
    storage.fetch(uri, tmp_path / "model")

    assert len(left) == 1
    assert not swept
    assert not (tmp_path / "never").exists()
    assert tree(tmp_path / "model") == {str(n): b"1" for n in range(5)}
    assert not list((tmp_path / "cache/.locks").iterdir())


def test_a_running_fetch_is_not_swept(
    emulator: Emulator, front: Front, storage: ArtifactFetcher, tmp_path: Path
) -> None:
    """What another process is still building stays."""
    uri = f"gs://{emulator.bucket()}/model"
    emulator.put(f"{uri}/model.pkl", b"1")
    asked, go = threading.Event(), threading.Event()

    def answer(path: str, forward: Callable[[], Answer]) -> Answer:
        if "alt=media" in path:
            asked.set()
            go.wait(HANG_SECONDS)
        return forward()

    front.answer = answer
    process = fetching(tmp_path, uri, "model")
    assert asked.wait(HANG_SECONDS)
    storage.fetch(str(make(tmp_path / "other", {"x": b"x"})), tmp_path / "other copy")
    go.set()
    process.communicate(timeout=HANG_SECONDS)

    assert process.returncode == 0
    assert tree(tmp_path / "model") == {"model.pkl": b"1"}


def test_eviction_takes_the_least_used(tmp_path: Path) -> None:
    """Over the cap, entries go by least use; those that were fetched from them stay as they are."""
    cache = ArtifactCache(tmp_path / "cache", 350)
    content = {"part 1": b"x" * 60, "part 2": b"y" * 40}
    files = {name: FileInfo(f"gs://b/{name}", len(data), "1", gzip=False) for name, data in content.items()}

    def download(file: FileInfo, target: Path) -> None:
        target.write_bytes(content[target.name])

    def fetch(name: str) -> Path:
        destination = tmp_path / f"{name}-{time.monotonic_ns()}"
        cache.fetch(name * 64, files, download, destination)
        return destination

    def held() -> str:
        return "".join(name for name in "abcdef" if name * 64 in entries(tmp_path))

    fetched = [fetch(name) for name in "abcb"]
    assert held() == "abc"
    fetched.append(fetch("d"))
    assert held() == "bcd"
    fetch("b")
    fetch("e")
    assert held() == "bde"
    assert all(tree(path) == content for path in fetched)


def test_an_entry_in_use_stays(tmp_path: Path) -> None:
    """As long as one of its users holds it; before it is whole nobody can."""
    cache = ArtifactCache(tmp_path, 100)
    first, *others = (letter * 64 for letter in "abcd")

    def fill(work: Path) -> None:
        (work / "file").write_bytes(b"x" * 60)

    def fill_first(work: Path) -> None:
        assert cache.hold(first) is None
        fill(work)

    assert cache.hold(first) is None
    cache.build_if_absent(first, fill_first)
    one, two = cache.hold(first), cache.hold(first)
    assert one is not None
    assert two is not None
    for held, other in ((one, others[0]), (two, others[1])):
        cache.build_if_absent(other, fill)
        assert (tmp_path / first / "file").exists()
        held.close()
    cache.build_if_absent(others[2], fill)

    assert not (tmp_path / first).exists()
    assert cache.hold(first) is None


def test_an_entry_in_use_is_not_waited_for(tmp_path: Path) -> None:
    """Programs that begin together use one entry in place: none waits for the end of another."""
    cache, digest = ArtifactCache(tmp_path / "cache", 1 << 20), "a" * 64
    begun, go_on, made = threading.Event(), threading.Event(), []

    def make(folder: Path) -> None:
        made.append(folder)
        begun.set()
        assert go_on.wait(HANG_SECONDS)
        (folder / "module.py").write_text("x = 1")

    def use() -> None:
        cache.build_if_absent(digest, make)
        held.append(cache.hold(digest, wait=True))

    held: list[HeldEntry | None] = []
    threads = [threading.Thread(target=use, daemon=True) for _ in range(5)]
    threads[0].start()
    assert begun.wait(HANG_SECONDS)
    for thread in threads[1:]:
        thread.start()
    go_on.set()
    for thread in threads:
        thread.join(HANG_SECONDS)
    late = threading.Thread(target=lambda: cache.fetch_or_build(digest, make, tmp_path / "copy"), daemon=True)
    late.start()
    late.join(HANG_SECONDS)

    assert len(made) == 1
    assert len(held) == 5
    assert (tmp_path / "copy" / "module.py").read_text() == "x = 1"
    for entry in held:
        assert entry is not None
        entry.close()


def test_no_lock_is_left_of_an_entry_that_was_built(tmp_path: Path) -> None:
    """Nor of one that was there already; the lock of a user stays as long as he uses the entry."""
    cache, digest = ArtifactCache(tmp_path / "cache", 1 << 20), "a" * 64
    locks = tmp_path / "cache/.locks"

    def make(folder: Path) -> None:
        (folder / "module.py").write_text("x = 1")

    for name in ("first", "second"):
        cache.fetch_or_build(digest, make, tmp_path / name)
        assert not list(locks.iterdir())
    user = cache.hold(digest)
    assert user is not None
    cache.build_if_absent(digest, make)
    assert [path.name for path in locks.iterdir()] == [digest]
    user.close()
    cache.build_if_absent(digest, make)
    assert not list(locks.iterdir())


@pytest.mark.parametrize("place", ["bucket", "folder"])
def test_versions_share_no_file(
    emulator: Emulator, storage: ArtifactFetcher, tmp_path: Path, place: str
) -> None:
    """What code does to the files of one, as whatever user, changes none of another or of a later one."""
    source = make(tmp_path / "source", {"model.pkl": b"good", "deep/vocabulary": b"good"})
    uri = str(source)
    if place == "bucket":
        uri = f"gs://{emulator.bucket()}/model"
        emulator.upload(source, uri)
    storage.fetch(uri, tmp_path / "a")
    storage.fetch(uri, tmp_path / "b")
    for path in (tmp_path / "a").rglob("*"):
        if path.is_file():
            assert path.stat().st_mode & 0o777 == 0o444
            path.chmod(0o644)
            with path.open("r+b") as file:
                file.write(b"evil")
    storage.fetch(uri, tmp_path / "c")

    expected = {"model.pkl": b"good", "deep/vocabulary": b"good"}
    assert tree(source) == tree(tmp_path / "b") == tree(tmp_path / "c") == expected


def test_a_cache_folder_may_hold_other_things(emulator: Emulator, tmp_path: Path) -> None:
    """Eviction removes entries of the cache and nothing else."""
    make(tmp_path / "cache", {"precious/file": b"x" * 1000, "notes": b"1"})
    uri = f"gs://{emulator.bucket()}/model"
    emulator.put(f"{uri}/model.pkl", b"1")

    ArtifactFetcher(tmp_path / "cache", 0, retry_seconds=10).fetch(uri, tmp_path / "copy")

    assert tree(tmp_path / "cache/precious") == {"file": b"x" * 1000}
    assert (tmp_path / "cache/notes").exists()


def test_an_artefact_over_the_cap_is_served(emulator: Emulator, tmp_path: Path) -> None:
    """The cap bounds what is kept without need; it does not forbid a large model."""
    uri = f"gs://{emulator.bucket()}/model"
    emulator.put(f"{uri}/model.pkl", b"x" * 1000)

    assert (
        ArtifactFetcher(tmp_path / "cache", 10, retry_seconds=10).fetch(uri, tmp_path / "copy").bytes == 1000
    )


def test_a_local_folder_is_not_kept_in_the_cache(storage: ArtifactFetcher, tmp_path: Path) -> None:
    """It is as near as the cache."""
    storage.fetch(str(make(tmp_path / "model", {"model.pkl": b"1"})), tmp_path / "copy")

    assert not (tmp_path / "cache").exists()


def test_another_file_system_gets_a_copy(storage: ArtifactFetcher, tmp_path: Path) -> None:
    """Where the kernel copies nothing by itself."""
    shm = Path("/dev/shm")
    if not shm.is_dir() or shm.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs a second file system")
    source = make(tmp_path / "model", {"model.pkl": b"1"})
    destination = shm / f"pilotlight-test-{os.getpid()}"
    try:
        storage.fetch(str(source), destination)

        assert tree(destination) == {"model.pkl": b"1"}
    finally:
        for path in destination.iterdir():
            path.unlink()
        destination.rmdir()
