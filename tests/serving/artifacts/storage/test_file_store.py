"""What reading and writing files promises, in a bucket and on a disk alike."""

from __future__ import annotations

import io
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from serving.artifacts.storage import FileStore
from serving.errors import (
    InvalidArgument,
    NotFound,
    Unavailable,
)
from tests.bounds import HANG_SECONDS
from tests.emulator import Emulator
from tests.serving.artifacts.storage.places import MIB, Place

# ---- finding


def test_an_exact_path_is_one_file(files: FileStore, place: Place) -> None:
    """A path without a star finds the file of this name, with its size."""
    place.fill("a/1.json", "a/1.json.old")

    found = files.glob(f"{place.root}/a/1.json")

    (item,) = found
    assert (item.uri, item.size, item.gzip) == (f"{place.root}/a/1.json", 8, False)


def test_a_star_reaches_one_folder(files: FileStore, place: Place) -> None:
    """`folder/*` and `prefix*` find files of one folder in order, none below it and none that is hidden."""
    place.fill("in/b", "in/a", "in/ab", "in/.hidden", "in/a-folder/x", "inside", "other")

    found = [place.names(files.glob(f"{place.root}/{pattern}")) for pattern in ("in/*", "in/a*", "in*")]

    assert found == [["in/a", "in/ab", "in/b"], ["in/a", "in/ab"], ["inside"]]


def test_many_files_are_found(files: FileStore, tmp_path: Path) -> None:
    """There is no limit of a thousand."""
    for number in range(1100):
        (tmp_path / f"{number:04}").touch()

    assert len(files.glob(f"{tmp_path}/*")) == len(files.list(str(tmp_path))) == 1100


def test_a_version_changes_with_the_content(files: FileStore, place: Place) -> None:
    """It stays while the file stays."""
    uri = f"{place.root}/a"
    place.put(uri, b"old")
    versions = [files.glob(uri)[0].version for _ in range(2)]

    place.put(uri, b"newer")

    assert versions[0] == versions[1] != files.glob(uri)[0].version


@pytest.mark.parametrize(
    "pattern", ["missing", "missing/x", "a/x", "a*x/1", "folder/none*", "missing/*", "a/*"]
)
def test_nothing_found_says_what_to_check(files: FileStore, place: Place, pattern: str) -> None:
    """A path and a pattern that name nothing are NotFound, also below a file."""
    place.fill("a", "folder/.hidden", "folder/deeper/none")
    error = InvalidArgument if "*" in pattern[:-1] else NotFound

    with pytest.raises(error, match=r"Check the|not its last character") as caught:
        files.glob(f"{place.root}/{pattern}")

    assert f"{place.root}/{pattern}" in caught.value.message


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_folder_needs_a_star(files: FileStore, place: Place, slash: str) -> None:
    """A folder is an error that says what to write."""
    place.fill("folder/a")

    with pytest.raises(InvalidArgument) as caught:
        files.glob(f"{place.root}/folder{slash}")

    folder = f"{place.root}/folder"
    assert f"{folder} is a folder; expected a single file, or {folder}/* where" in caught.value.message


@pytest.mark.parametrize("pattern", ["**", "*/a", "a*b", "*/"])
def test_a_star_elsewhere_is_refused(files: FileStore, place: Place, pattern: str) -> None:
    """A star is the last character or none."""
    with pytest.raises(InvalidArgument, match="write FOLDER/"):
        files.glob(f"{place.root}/{pattern}")


@pytest.mark.parametrize("uri", ["", "gs://", "s3://bucket/x", "file://host/x", "a\0b"])
def test_other_uris_are_refused(files: FileStore, uri: str) -> None:
    """They are refused wherever a URI is taken."""
    for method in (files.glob, files.read, files.create, files.delete, files.delete_folder, files.list):
        with pytest.raises(InvalidArgument, match="expected gs://"):
            method(uri)


# ---- reading


def test_reading_starts_anywhere(files: FileStore, place: Place) -> None:
    """What was found is read from a byte on to its end; past the end there is nothing."""
    data = os.urandom(3 * MIB)
    place.put(f"{place.root}/a", data)
    (item,) = files.glob(f"{place.root}/a")

    read = {}
    for start in (0, 1, 2 * MIB, len(data), len(data) + 1):
        with files.open(item, start) as file:
            read[start] = file.read()

    assert read == {start: data[start:] for start in read}


def test_reading_lines(files: FileStore, place: Place) -> None:
    """What is opened can be wrapped as any binary file."""
    place.put(f"{place.root}/a", "ä\nb\n".encode() * 1000)
    (item,) = files.glob(f"{place.root}/a")

    with files.open(item) as file, io.TextIOWrapper(file, "utf-8") as text:
        assert list(text) == ["ä\n", "b\n"] * 1000


def test_an_empty_file(files: FileStore, place: Place) -> None:
    """It is found, read and written like any other."""
    with files.create(f"{place.root}/a"):
        pass
    (item,) = files.glob(f"{place.root}/a")

    with files.open(item) as file:
        assert (item.size, file.read(), file.read(1), file.readline()) == (0, b"", b"", b"")


def test_a_large_file_is_streamed(files: FileStore, place: Place) -> None:
    """20 MiB are written and read back in pieces, and come back as they went."""
    uri = f"{place.root}/deep/er/a"
    pieces = [os.urandom(MIB + 7) for _ in range(20)]

    with files.create(uri) as file:
        for piece in pieces:
            file.write(piece)
    (item,) = files.glob(uri)
    with files.open(item) as file:
        read = [file.read(MIB + 7) for _ in pieces]
        rest = file.read(1)

    assert read == pieces
    assert rest == b""
    assert item.size == 20 * (MIB + 7)


def test_a_size_of_whole_chunks(files: FileStore, place: Place) -> None:
    """Nothing is odd about a file of exactly one upload chunk."""
    data = os.urandom(8 * MIB)
    with files.create(f"{place.root}/a") as file:
        file.write(data)
    (item,) = files.glob(f"{place.root}/a")

    with files.open(item) as file:
        assert file.read() == data


def test_a_file_replaced_before_it_is_read(files: FileStore, place: Place) -> None:
    """What is opened is what was found, or Unavailable: also when the new content is as long as the old."""
    uri = f"{place.root}/a"
    place.put(uri, b"old" * 1000)
    (item,) = files.glob(uri)
    files.write(uri, b"new" * 1000)

    with (
        pytest.raises(
            Unavailable, match=r"root/a was replaced or removed while it was being read; try again"
        ),
        files.open(item) as file,
    ):
        file.read()


def test_a_file_changed_while_it_is_read(files: FileStore, place: Place) -> None:
    """A file that is written to meanwhile is noticed before its end is believed."""
    uri = f"{place.root}/a"
    place.put(uri, b"old" * 4 * MIB)
    (item,) = files.glob(uri)

    with pytest.raises(Unavailable, match="replaced or removed"), files.open(item) as file:
        assert file.read(3) == b"old"
        place.put(uri, b"new" * 4 * MIB)
        while file.read(MIB):
            pass


def test_a_file_removed_before_it_is_read(files: FileStore, place: Place) -> None:
    """It is as if it had been replaced."""
    uri = f"{place.root}/a"
    place.fill("a")
    (item,) = files.glob(uri)
    files.delete(uri)

    with pytest.raises(Unavailable, match="replaced or removed"), files.open(item) as file:
        file.read()


def test_a_small_file_is_read_whole(files: FileStore, place: Place) -> None:
    """One call, or NotFound with its name."""
    place.fill("a")

    assert files.read(f"{place.root}/a") == b"a"
    with pytest.raises(NotFound, match="root/missing"):
        files.read(f"{place.root}/missing")


# ---- writing


def test_a_file_appears_when_its_block_ends(files: FileStore, place: Place) -> None:
    """Neither a new file nor a new content is seen before."""
    uri = f"{place.root}/a"
    seen = []
    for data in (b"1", b"2"):
        with files.create(uri) as file:
            file.write(data)
            seen.append([files.read(item.uri) for item in files.list(place.root)])

    assert seen == [[], [b"1"]]
    assert files.read(uri) == b"2"


@pytest.mark.parametrize("size", [1, 9 * MIB])
def test_a_block_that_raises_leaves_nothing(
    files: FileStore, place: Place, tmp_path: Path, size: int
) -> None:
    """The error passes, no file appears and what was there stays."""
    place.fill("old")
    for name in ("old", "new"):
        with pytest.raises(ZeroDivisionError), files.create(f"{place.root}/{name}") as file:
            file.write(b"x" * size)
            raise ZeroDivisionError
    # Neither now nor when it is thrown away.
    del file

    assert place.names(files.list(place.root)) == ["old"]
    assert files.read(f"{place.root}/old") == b"old"
    assert not list(tmp_path.rglob("*.part"))


def test_writing(files: FileStore, place: Place) -> None:
    """An object or a file, with the folders it needs, is created or replaced."""
    uri = f"{place.root}/logs/1.jsonl"

    for data in (b"old", b"new"):
        files.write(uri, data)

    assert files.read(uri) == b"new"
    assert place.names(files.list(place.root)) == ["logs/1.jsonl"]


def test_a_claim_is_made_once(files: FileStore, place: Place) -> None:
    """The first is told so, and what it wrote stays."""
    uri = f"{place.root}/deep/claim"

    assert [files.create_if_absent(uri, name) for name in (b"a", b"b", b"a")] == [True, False, False]
    assert files.read(uri) == b"a"
    assert place.names(files.list(place.root)) == ["deep/claim"]


def test_of_many_claims_on_disk_one_wins(files: FileStore, tmp_path: Path) -> None:
    """Also when they come at the same time."""
    both = threading.Barrier(8)

    def claim(number: int) -> bool:
        both.wait(HANG_SECONDS)
        return files.create_if_absent(f"{tmp_path}/claim", str(number).encode())

    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(claim, range(8)))

    assert told.count(True) == 1
    assert files.read(f"{tmp_path}/claim") == str(told.index(True)).encode()
    assert [path.name for path in tmp_path.iterdir()] == ["claim"]


def test_claims_whose_partial_files_are_removed(files: FileStore, tmp_path: Path) -> None:
    """They are made all the same, once; nothing else is removed."""
    over = threading.Event()
    other = tmp_path / ".claims.0a.part"
    other.touch()

    def remove() -> None:
        while not over.wait(0.001):  # one that never pauses leaves no file alone for long enough
            files.delete_partials(f"{tmp_path}/claim")

    with ThreadPoolExecutor(1) as pool:
        removing = pool.submit(remove)
        try:
            for _ in range(20):
                assert files.create_if_absent(f"{tmp_path}/claim", b"a")
                assert not files.create_if_absent(f"{tmp_path}/claim", b"b")
                files.delete(f"{tmp_path}/claim")
        finally:
            over.set()
        removing.result()

    files.delete_partials(f"{tmp_path}/missing/claim")
    assert list(tmp_path.iterdir()) == [other]


def test_moving(files: FileStore, place: Place) -> None:
    """A file gets another name, in a folder that need not be there, over one that has it."""
    place.fill("a", "b")

    files.move(f"{place.root}/a", f"{place.root}/deep/c")
    files.move(f"{place.root}/b", f"{place.root}/deep/c")
    files.move(f"{place.root}/deep/c", f"{place.root}/deep/c")

    assert place.names(files.list(place.root)) == ["deep/c"]
    assert files.read(f"{place.root}/deep/c") == b"b"


def test_moving_what_is_not_there(files: FileStore, place: Place) -> None:
    """It is NotFound and makes nothing."""
    with pytest.raises(NotFound, match="root/a"):
        files.move(f"{place.root}/a", f"{place.root}/deep/b")

    assert files.list(place.root) == []


def test_moving_elsewhere_is_refused(files: FileStore, emulator: Emulator, tmp_path: Path) -> None:
    """Neither from a disk to a bucket nor from one bucket to another."""
    bucket, other = f"gs://{emulator.bucket()}/a", f"gs://{emulator.bucket()}/a"

    for source, target in ((bucket, other), (bucket, str(tmp_path)), (str(tmp_path), bucket)):
        with pytest.raises(InvalidArgument, match="not in the same storage"):
            files.move(source, target)


def test_deleting(files: FileStore, place: Place) -> None:
    """A file goes; one that is not there is no error."""
    place.fill("a", "b")

    for name in ("a", "a", "missing/x", "b/x"):
        files.delete(f"{place.root}/{name}")

    assert place.names(files.list(place.root)) == ["b"]


def test_deleting_a_folder(files: FileStore, place: Place) -> None:
    """All below it goes and nothing beside it; one that is not there is no error."""
    place.fill("in/a", "in/deep/.b", "inside", "out/a")

    for name in ("in", "in", "missing"):
        files.delete_folder(f"{place.root}/{name}")

    assert place.names(files.list(place.root)) == ["inside", "out/a"]
    assert not Path(f"{place.root}/in").exists()


@pytest.mark.parametrize("uri", ["/", "gs://bucket", "gs://bucket/", "file:///"])
def test_a_whole_storage_is_not_removed(files: FileStore, uri: str) -> None:
    """A mistake should not cost a disk."""
    with pytest.raises(InvalidArgument, match="it is not removed"):
        files.delete_folder(uri)


def test_listing(files: FileStore, place: Place) -> None:
    """Files at any depth, hidden ones too, in order; an absent folder and a file hold none."""
    place.fill("b", "a/x", "a/deep/.y", "ab")

    assert place.names(files.list(place.root)) == ["a/deep/.y", "a/x", "ab", "b"]
    assert place.names(files.list(f"{place.root}/a")) == ["a/deep/.y", "a/x"]
    assert files.list(f"{place.root}/missing") == files.list(f"{place.root}/b") == []


def test_files_go_to_other_processes(files: FileStore, place: Place) -> None:
    """Before and after they were used, with what was found."""
    place.fill("a")
    unused = pickle.dumps(files)
    (item,) = files.glob(f"{place.root}/a")
    used = pickle.dumps((files, item))

    copy, copied = pickle.loads(used)
    assert pickle.loads(unused).glob(f"{place.root}/a") == [item] == [copied]
    with copy.open(copied) as file:
        assert file.read() == b"a"
