"""What reading and writing files promises, in a bucket and on a disk alike."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
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
from tests.emulator import Answer, Emulator, Front

pytestmark = [
    # google-api-core wishes for a package that only gRPC clients use.
    pytest.mark.filterwarnings("ignore:Please install grpcio-status:ImportWarning"),
    # The storage client drops the responses of failed downloads without closing them.
    pytest.mark.filterwarnings("ignore:unclosed.*socket:ResourceWarning"),
]

MIB = 1 << 20


@dataclass(frozen=True)
class Place:
    """A folder to try things in, `root`, and a way to put files there without what is tested."""

    root: str
    put: Callable[[str, bytes], None]

    def fill(self, *names: str) -> None:
        """Put a file with its name as its content under each of these names."""
        for name in names:
            self.put(f"{self.root}/{name}", name.encode())

    def names(self, items: list[FileInfo]) -> list[str]:
        """Names of files, relative to the folder."""
        return [item.uri.removeprefix(f"{self.root}/") for item in items]


def put(path: str, data: bytes) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(data)


@pytest.fixture(params=["disk", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "disk":
        return Place(str(tmp_path / "root"), put)
    emulator: Emulator = request.getfixturevalue("emulator")
    return Place(f"gs://{emulator.bucket()}/root", emulator.put)


@pytest.fixture
def files() -> FileStore:
    return FileStore(retry_seconds=10)


# ---- finding ----


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


# ---- reading ----


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


# ---- writing ----


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
        both.wait(30)
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
        while not over.is_set():
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


# ---- disks ----


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


def test_a_full_disk(files: FileStore) -> None:
    """ResourceExhausted says which file has no room; nothing of it is left."""
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("needs /dev/full")
    folder = Path("/dev/shm")
    partial = folder / f".pilotlight-test.{os.getpid()}.part"
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


# ---- Cloud Storage ----


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
