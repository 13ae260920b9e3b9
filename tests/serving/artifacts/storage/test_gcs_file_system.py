"""What reading and writing objects of Cloud Storage promises besides."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc
from collections.abc import Callable

import pytest

from serving.artifacts.storage import FileStore
from serving.errors import (
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Unavailable,
)
from tests.emulator import Answer, Emulator, Front
from tests.serving.artifacts.storage.places import MIB


def test_placeholders_of_folders_are_no_files(files: FileStore, emulator: Emulator) -> None:
    """Consoles make an object `folder/` for a folder: it is not found, but goes with it."""
    from google.api_core.exceptions import NotFound as Missing

    root = f"gs://{emulator.bucket()}"
    for name in ("in/", "in/a", "in/deep/"):
        emulator.put(f"{root}/{name}", b"")

    assert [item.uri for item in files.glob(f"{root}/in/*")] == [f"{root}/in/a"]
    assert [item.uri for item in files.list(root)] == [f"{root}/in/a"]
    files.delete_folder(f"{root}/in")
    with pytest.raises(Missing):
        emulator.get(f"{root}/in/")


def test_a_listing_of_many_pages(files: FileStore, front: Front) -> None:
    """Cloud Storage answers a thousand at a time; all pages are asked for."""

    def answer(path: str, _: Callable[[], Answer]) -> Answer:
        second = "pageToken=more" in path
        page: dict[str, object] = {} if second else {"nextPageToken": "more"}
        page["items"] = [{"name": f"in/{second:d}", "size": "1", "generation": "1"}]
        return Answer(200, [("Content-Type", "application/json")], json.dumps(page).encode())

    front.answer = answer

    assert [item.uri for item in files.glob("gs://bucket/in/*")] == ["gs://bucket/in/0", "gs://bucket/in/1"]
    assert all("nextPageToken" in path for path in front.paths)


def test_a_whole_bucket_is_a_folder(files: FileStore, emulator: Emulator) -> None:
    """Its objects are found by a star."""
    root = f"gs://{emulator.bucket()}"
    emulator.put(f"{root}/a", b"1")

    assert [item.uri for item in files.glob(f"{root}/*")] == [f"{root}/a"]
    for uri in (root, f"{root}/"):
        with pytest.raises(InvalidArgument, match=r"expected a single file, or gs://\S+[^/]/\* where"):
            files.glob(uri)


def test_a_bucket_that_is_missing(files: FileStore, emulator: Emulator) -> None:
    """It is named, by reading and by writing; there is nothing in it to remove."""
    uri = "gs://no-such-bucket/a"

    def create() -> None:
        with files.create(uri) as file:
            file.write(b"1")

    actions: list[Callable[[], object]] = [
        lambda: files.glob(uri),
        lambda: files.glob(f"{uri}*"),
        lambda: files.write(uri, b"1"),
        lambda: files.create_if_absent(uri, b"1"),
        create,
    ]
    for action in actions:
        with pytest.raises(NotFound, match="There is no bucket no-such-bucket"):
            action()
    files.delete(uri)
    files.delete_folder(uri)
    assert files.list(uri) == []


def test_a_bucket_is_no_object(files: FileStore) -> None:
    """A name is needed to read or write."""
    for write in (files.create("gs://bucket").__enter__, lambda: files.write("gs://bucket", b"")):
        with pytest.raises(InvalidArgument, match="expected an object to write"):
            write()
    with pytest.raises(InvalidArgument, match="expected an object to write"):
        files.create_if_absent("gs://bucket", b"")
    for read in (files.read, files.delete, lambda uri: files.move(uri, f"{uri}/a")):
        with pytest.raises(InvalidArgument, match="expected a single object"):
            read("gs://bucket")


def test_compressed_objects_stay_compressed(files: FileStore, emulator: Emulator) -> None:
    """An object stored with `Content-Encoding: gzip` says so, is read as it is stored, and moves as it is."""
    root = f"gs://{emulator.bucket()}"
    packed = gzip.compress(b"content" * 1000)
    emulator.put(f"{root}/a", packed, encoding="gzip")

    files.move(f"{root}/a", f"{root}/b")
    (item,) = files.glob(f"{root}/b")

    assert (item.gzip, item.size) == (True, len(packed))
    assert files.read(f"{root}/b") == packed
    with files.open(item, 10) as file:
        assert file.read() == packed[10:]


def test_chunks_bound_the_memory(files: FileStore, emulator: Emulator, front: Front) -> None:
    """A download asks for a few MiB at a time, for all of the object once, and keeps no more than two."""
    uri = f"gs://{emulator.bucket()}/a"
    emulator.put(uri, os.urandom(20 * MIB))
    (item,) = files.glob(uri)
    with files.open(item) as file:
        file.read(1)
        tracemalloc.start()
        while file.read(1000):
            pass
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()

    assert len(front.downloads()) == 3
    assert all(f"generation={item.version}" in path for path in front.downloads())
    assert peak < 40 * MIB


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("where", ["alt=media", "prefix=", "uploadType", "upload_id", "rewriteTo"])
def test_transient_failures_are_retried(
    emulator: Emulator, front: Front, files: FileStore, where: str, status: int
) -> None:
    """Two failures in a row, wherever they are, do not fail anything."""
    root = f"gs://{emulator.bucket()}"
    data = os.urandom(9 * MIB)
    front.fail(status, times=2, where=where)

    with files.create(f"{root}/a") as file:
        file.write(data)
    files.move(f"{root}/a", f"{root}/b")
    (item,) = files.glob(f"{root}/*")
    with files.open(item) as file:
        read = file.read()

    assert read == data
    assert len([path for path in front.paths if where in path]) > 2


@pytest.mark.parametrize("where", ["alt=media", "uploadType", "rewriteTo", "prefix="])
def test_retries_end(emulator: Emulator, front: Front, where: str) -> None:
    """When Cloud Storage fails for longer than our patience, the error is Unavailable and says how long."""
    root = f"gs://{emulator.bucket()}"
    emulator.put(f"{root}/a", b"1")
    files = FileStore(retry_seconds=0.5)
    (item,) = files.glob(f"{root}/a")
    front.fail(503, times=1000, where=where)

    with pytest.raises(Unavailable, match=r"kept failing on gs://\S+ for 0.5 s: HTTP status 503"):
        if where == "alt=media":
            files.open(item).read()
        elif where == "uploadType":
            with files.create(f"{root}/b") as file:
                file.write(b"1")
        elif where == "rewriteTo":
            files.move(f"{root}/a", f"{root}/b")
        else:
            files.list(root)

    front.answer = lambda _, forward: forward()
    assert [item.uri for item in files.list(root)] == [f"{root}/a"]


def test_a_refusal_of_the_bucket(emulator: Emulator, front: Front, files: FileStore) -> None:
    """A 403 is not retried, and the error says what is missing."""
    root = f"gs://{emulator.bucket()}"
    emulator.put(f"{root}/a", b"1")
    (item,) = files.glob(f"{root}/a")
    front.fail(403, times=1000)

    def create() -> None:
        with files.create(f"{root}/b") as file:
            file.write(b"1")

    actions: list[Callable[[], object]] = [
        lambda: files.glob(f"{root}/a"),
        lambda: files.glob(f"{root}/*"),
        lambda: files.open(item).read(),
        lambda: files.read(f"{root}/a"),
        lambda: files.write(f"{root}/b", b""),
        lambda: files.create_if_absent(f"{root}/b", b""),
        lambda: files.move(f"{root}/a", f"{root}/b"),
        lambda: files.delete(f"{root}/a"),
        lambda: files.delete_folder(f"{root}/a"),
        lambda: files.list(root),
        create,
    ]
    for action in actions:
        with pytest.raises(PermissionDenied, match=r"storage\.objectViewer"):
            action()


def test_a_generation_that_is_gone(emulator: Emulator, front: Front, files: FileStore) -> None:
    """Cloud Storage itself answers 404 for a generation that was replaced."""
    uri = f"gs://{emulator.bucket()}/a"
    emulator.put(uri, b"1")
    (item,) = files.glob(uri)
    front.fail(404, times=1, where="alt=media")

    with pytest.raises(Unavailable, match="replaced or removed"), files.open(item) as file:
        file.read()


def test_damage_on_the_way_up_is_noticed(emulator: Emulator, front: Front, files: FileStore) -> None:
    """Cloud Storage says which checksum it stored; another than ours is an error."""
    front.replace(b'"crc32c": "', b'"crc32c": "x')

    with (
        pytest.raises(Unavailable, match=r"/a arrived damaged: .* Try again\."),
        files.create(f"gs://{emulator.bucket()}/a") as file,
    ):
        file.write(b"1")


def claimed(front: Front, files: FileStore, uri: str, *, stored: bool) -> bool:
    """Claim where Cloud Storage says that the condition fails, after it has stored what was sent or not."""

    def answer(path: str, forward: Callable[[], Answer]) -> Answer:
        if "ifGenerationMatch=0" not in path:
            return forward()
        if stored:
            forward()
        return Answer(412)

    front.answer = answer
    return files.create_if_absent(uri, b"ours")


def test_a_claim_stands_on_a_condition(emulator: Emulator, front: Front, files: FileStore) -> None:
    """Where somebody else was a moment faster it is theirs, though we saw nothing before."""
    uri = f"gs://{emulator.bucket()}/claim"

    assert not claimed(front, files, uri, stored=False)


def test_a_claim_whose_answer_was_lost(emulator: Emulator, front: Front, files: FileStore) -> None:
    """A repeated upload finds the object that it made itself: the claim is ours."""
    uri = f"gs://{emulator.bucket()}/claim"

    assert claimed(front, files, uri, stored=True)
    assert not files.create_if_absent(uri, b"ours")
