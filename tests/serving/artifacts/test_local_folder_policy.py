"""Local paths of callers: what leads into the state folder or out of the open folders is not touched."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from serving.artifacts.local_folder_policy import LocalFolderPolicy
from serving.artifacts.storage import ArtifactFetcher, FileInfo, FileStore
from serving.artifacts.trusted_sources import check_local_uri
from serving.errors import FailedPrecondition, InvalidArgument, ServingError

SECRET = b"secret\n"


class Machine:
    """A state folder with a secret, a folder that is open to callers, and one that is not."""

    def __init__(self, root: Path) -> None:
        self.state, self.open, self.closed = (root / name for name in ("state", "open", "closed"))
        for folder in (self.state, self.open, self.closed):
            (folder / "below").mkdir(parents=True)
            (folder / "file").write_bytes(SECRET)
        self.anywhere = LocalFolderPolicy.from_setting("", self.state)
        self.folders = LocalFolderPolicy.from_setting(f" {self.open} ,", self.state)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def is_open(folders: LocalFolderPolicy, uri: str) -> bool:
    try:
        check_local_uri(folders, "field", uri)
    except FailedPrecondition as error:
        assert error.field == "field"
        assert "local_folders" in error.message
        return False
    return True


@pytest.mark.parametrize(
    "uri",
    [
        "{state}",
        "{state}/",
        "{state}/file",
        "{state}/not/there",
        "/{state}/file",
        "//{state}//file",
        "{closed}/../state/file",
        "{closed}/./../state/*",
        "file://{state}/file",
        "file://localhost{state}/file",
        "FILE://{state}/file",
        "file:///{state}/file",
        "file://{closed}/%2e%2e/state/file",
        "file://{closed}%2F..%2Fst%61te/file",
        "{state}/*",
        "{state}/admin*",
        "{closed}/link/file",
        "{closed}/link*/../link/file",
        "{closed}/link-to-file",
        "/proc/self/environ",
        "/proc/self/root{state}/file",
        "//proc/self/environ",
        "/proc/*",
        "/sys/kernel/notes",
        "/dev/zero",
        "/dev/fd/0",
    ],
)
def test_what_nobody_may_name(machine: Machine, uri: str) -> None:
    """The state folder and the kernel's, in any spelling, whatever the setting says."""
    (machine.closed / "link").symlink_to("../closed/../state")
    (machine.closed / "link-to-file").symlink_to(machine.state / "file")
    uri = uri.format(state=machine.state, closed=machine.closed)
    everything = LocalFolderPolicy.from_setting("/", machine.state)

    assert not is_open(machine.anywhere, uri)
    assert not is_open(machine.folders, uri)
    assert not is_open(everything, uri)


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("{open}", True),
        ("{open}/file", True),
        ("{open}/new/folder", True),
        ("{open}/*", True),
        ("file://{open}/a%20b", True),
        ("{closed}/../open/file", True),
        ("{open}-2/file", False),
        ("{open}*", False),
        ("{open}/../closed/file", False),
        ("{open}/link/file", False),
        ("{closed}/file", False),
        ("/etc/passwd", False),
        ("gs://bucket/object", True),
    ],
)
def test_what_the_setting_opens(machine: Machine, uri: str, expected: bool) -> None:
    """These folders and what is below them; without the setting all but the state folder."""
    (machine.open / "link").symlink_to(machine.closed)
    uri = uri.format(open=machine.open, closed=machine.closed)

    assert is_open(machine.folders, uri) == expected
    assert is_open(machine.anywhere, uri)


def test_a_state_folder_behind_a_link(tmp_path: Path) -> None:
    """However the server was told of it."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    folders = LocalFolderPolicy.from_setting("", tmp_path / "link")

    assert not is_open(folders, f"{tmp_path}/real/state.db")
    assert not is_open(folders, f"{tmp_path}/link/state.db")


def test_the_refusal_tells_nothing_of_what_is_there(machine: Machine) -> None:
    """It is in the same words whether or not there is a file."""
    said = []
    for name in ("file", "nope"):
        with pytest.raises(FailedPrecondition) as caught:
            FileStore(folders=machine.folders).glob(f"{machine.closed}/{name}")
        said.append(caught.value.message.replace(name, "NAME"))

    assert said[0] == said[1]


@pytest.mark.parametrize("setting", ["", "/"])
def test_a_link_that_may_not_be_read(setting: str, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """As /proc has them for other users' processes: the client is told, and nothing else happens."""

    def refuse(path: str) -> str:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    folders = LocalFolderPolicy.from_setting(setting, machine.state)
    monkeypatch.setattr(os.path, "realpath", refuse)

    with pytest.raises(FailedPrecondition, match="/proc/1/root/etc cannot be followed: Permission denied"):
        check_local_uri(folders, "field", "/proc/1/root/etc")


def test_only_absolute_folders_can_be_opened(tmp_path: Path) -> None:
    """A relative one would depend on where the server was started."""
    with pytest.raises(InvalidArgument, match="local_folders: data"):
        LocalFolderPolicy.from_setting("/srv,data", tmp_path)


def test_a_folder_that_holds_the_state_folder_is_no_model(machine: Machine) -> None:
    """Its copy would have the state in it; neither is it removed with all that is below it."""
    parent = machine.state.parent
    with pytest.raises(FailedPrecondition, match="contains the server's state folder"):
        ArtifactFetcher(machine.state / "cache", 0, folders=machine.anywhere).fetch(
            str(parent), parent / "copy"
        )
    with pytest.raises(FailedPrecondition, match="contains the server's state folder"):
        FileStore(folders=machine.anywhere).delete_folder(str(parent))

    assert (machine.state / "file").read_bytes() == SECRET


@pytest.mark.parametrize("name", ["link", "below/link"])
@pytest.mark.parametrize("target", ["file", "."])
def test_links_inside_a_model_are_followed_into_open_folders_only(
    machine: Machine, name: str, target: str
) -> None:
    """To a file or to a folder."""
    (machine.open / name).symlink_to(machine.state / target)
    storage = ArtifactFetcher(machine.state / "cache", 0, folders=machine.folders)
    with pytest.raises(FailedPrecondition, match="state folder"):
        storage.fetch(str(machine.open), machine.state / "copy")


def test_an_archive_elsewhere_is_not_fetched(machine: Machine) -> None:
    """Packages are files of the same folders."""
    storage = ArtifactFetcher(machine.state / "cache", 0, folders=machine.folders)
    with pytest.raises(FailedPrecondition, match="local_folders"):
        storage.fetch_file(f"{machine.closed}/file", machine.state / "copy")


def test_each_file_that_a_pattern_finds_is_checked(machine: Machine) -> None:
    """A link among the files of an open folder is refused, not read and not passed over."""
    files = FileStore(folders=machine.folders)
    assert [item.uri for item in files.glob(f"{machine.open}/*")] == [f"{machine.open}/file"]
    (machine.open / "f-link").symlink_to(machine.state / "file")

    with pytest.raises(FailedPrecondition, match="f-link"):
        files.glob(f"{machine.open}/f*")


def use_create(files: FileStore, uri: str, _: FileInfo) -> None:
    with files.create(uri) as file:
        file.write(b"mine")


USES: dict[str, Callable[[FileStore, str, FileInfo], object]] = {
    "find": lambda files, uri, _: files.glob(uri),
    "open": lambda files, uri, item: files.open(FileInfo(uri, item.size, item.version, gzip=False)).read(),
    "read": lambda files, uri, _: files.read(uri),
    "create": use_create,
    "write": lambda files, uri, _: files.write(uri, b"mine"),
    "claim": lambda files, uri, _: files.create_if_absent(f"{uri}-new", b"mine"),
    "move from": lambda files, uri, item: files.move(uri, f"{item.uri}-new"),
    "move to": lambda files, uri, item: files.move(item.uri, uri),
    "delete": lambda files, uri, _: files.delete(uri),
    "delete a folder": lambda files, uri, _: files.delete_folder(str(Path(uri).parent)),
    "list": lambda files, uri, _: files.list(str(Path(uri).parent)),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_link_made_after_the_check_is_found(
    machine: Machine, use: Callable[[FileStore, str, FileInfo], object]
) -> None:
    """Whatever was found out before, each use looks again."""
    files = FileStore(folders=machine.folders)
    folder = machine.open / "below"
    (folder / "file").write_bytes(SECRET)
    (item,) = files.glob(str(folder / "file"))
    (own,) = files.glob(str(machine.open / "file"))
    # The very file that was found, elsewhere: neither its size nor its time tells.
    folder.rename(machine.closed / "moved")
    folder.symlink_to(machine.closed / "moved")

    with pytest.raises(FailedPrecondition, match="local_folders"):
        use(files, item.uri, item if use is USES["open"] else own)
    assert (machine.closed / "moved" / "file").read_bytes() == SECRET
    assert sorted(path.name for path in (machine.closed / "moved").iterdir()) == ["file"]


def test_what_is_open_is_judged_by_what_it_is(machine: Machine) -> None:
    """A path may change between check and use, a descriptor does not."""
    with (machine.closed / "file").open() as file, pytest.raises(FailedPrecondition):
        machine.folders.check_open_file(file.fileno(), f"{machine.open}/file")
    with (machine.open / "file").open() as file:
        machine.folders.check_open_file(file.fileno(), f"{machine.open}/file")


@pytest.mark.parametrize("name", ["pipe", "pipe*"])
def test_a_pipe_is_no_input(machine: Machine, name: str) -> None:
    """It is refused at once; nobody waits for its other end."""
    os.mkfifo(machine.open / "pipe")

    with pytest.raises(InvalidArgument, match="not a regular file"):
        FileStore(folders=machine.folders).glob(f"{machine.open}/{name}")


def test_a_pipe_in_the_place_of_a_file_that_was_found(machine: Machine) -> None:
    """The job does not hang on it."""
    files = FileStore(folders=machine.folders)
    (item,) = files.glob(f"{machine.open}/file")
    (machine.open / "file").unlink()
    os.mkfifo(machine.open / "file")

    with pytest.raises(ServingError, match="was replaced"):
        files.open(item)
