"""Packs of versions: what comes out is what went in, and nothing that harms goes out."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import socket
from pathlib import Path

import msgspec
import pytest

from serving.artifacts.version_pack import (
    DamagedPackError,
    PackedCode,
    PackedFile,
    PackIndex,
    list_files,
    unpack,
    write_pack,
)
from serving.errors import InvalidArgument, Unavailable

_DEEP = b"pilotlight-pack 1\n" + (100_000).to_bytes(8, "big") + b'{"x":' + b"[" * 100_000


def everything(_: PackIndex, __: str) -> bool:
    return True


def make_version(folder: Path) -> Path:
    """A version with files of all kinds, one of them larger than a read."""
    for name, data in {
        "model/model.bst": b"m" * (3 << 20),
        "model/variables/empty": b"",
        "code/packages/user.py": b"ANSWER = 42\n",
        "code/environment/bin/tool": b"#!/bin/sh\n",
        "other/not-packed": b"",
        "shared.json": b"{}",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    (folder / "code/environment/bin/tool").chmod(0o755)
    (folder / "code/environment/bin/python").symlink_to("/usr/bin/python3")
    (folder / "code/environment/lib64").symlink_to("lib")
    os.utime(folder / "code/packages/user.py", (1_600_000_000, 1_600_000_000))
    return folder


def pack(folder: Path) -> tuple[bytes, str]:
    out = io.BytesIO()
    digest = write_pack(folder, PackIndex(list_files(folder), PackedCode("here")), out.write)
    return out.getvalue(), digest


def pack_raw(*files: PackedFile, content: bytes = b"") -> tuple[bytes, str]:
    """A pack with any index."""
    index = msgspec.json.encode(PackIndex(files))
    data = b"pilotlight-pack 1\n" + len(index).to_bytes(8, "big") + index + content
    return data, hashlib.sha256(data).hexdigest()


def test_a_version_comes_out_as_it_went_in(tmp_path: Path) -> None:
    """Contents, programs, links, and times, which compiled modules are compared with."""
    version, copy = make_version(tmp_path / "version"), tmp_path / "copy"
    data, digest = pack(version)

    index = unpack(io.BytesIO(data), digest, copy, everything)

    assert index.code == PackedCode("here")
    assert hashlib.sha256(data).hexdigest() == digest
    assert list_files(copy) == list_files(version)
    assert {path.name for path in copy.iterdir()} == {"model", "code"}
    for name in ("model/model.bst", "model/variables/empty", "code/packages/user.py"):
        assert (copy / name).read_bytes() == (version / name).read_bytes()
    assert os.access(copy / "code/environment/bin/tool", os.X_OK)
    assert (copy / "code/environment/bin/python").readlink() == Path("/usr/bin/python3")
    assert pack(copy) == (data, digest)


def test_folders_can_be_left_out(tmp_path: Path) -> None:
    """What is read past is part of the digest all the same."""
    data, digest = pack(make_version(tmp_path / "version"))

    unpack(io.BytesIO(data), digest, tmp_path / "copy", lambda _, top: top != "code")

    assert {path.name for path in (tmp_path / "copy").iterdir()} == {"model"}


@pytest.mark.parametrize(
    "name",
    ["/etc/x", "model/../../x", "model/./x", "../x", "model//x", "shared.json", "versions/x", "", "model/\0"],
)
def test_no_file_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    data, digest = pack_raw(PackedFile(name, 1), content=b"x")

    with pytest.raises(DamagedPackError, match="names a file"):
        unpack(io.BytesIO(data), digest, tmp_path / "copy", everything)
    assert not list(tmp_path.rglob("x"))


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    """Not even to a place where the link itself may lead."""
    (tmp_path / "out").mkdir()
    files = (PackedFile("code/a", link=str(tmp_path / "out")), PackedFile("code/a/x", 1))
    data, digest = pack_raw(*files, content=b"x")

    with pytest.raises((DamagedPackError, FileExistsError)):
        unpack(io.BytesIO(data), digest, tmp_path / "copy", everything)
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("name", ["code/a/b", "code/a/folder/b"])
def test_no_link_is_made_below_a_link(tmp_path: Path, name: str) -> None:
    """It would be made where the first one leads."""
    (tmp_path / "out").mkdir()
    data, digest = pack_raw(PackedFile("code/a", link=str(tmp_path / "out")), PackedFile(name, link="x"))

    with pytest.raises(DamagedPackError, match="is below a link"):
        unpack(io.BytesIO(data), digest, tmp_path / "copy", everything)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_model_has_no_links(tmp_path: Path) -> None:
    """Neither in a pack nor in what is packed: it would show files of a server to callers."""
    data, digest = pack_raw(PackedFile("model/a", link="/etc/passwd"))
    with pytest.raises(DamagedPackError, match="cannot be right"):
        unpack(io.BytesIO(data), digest, tmp_path / "copy", everything)

    (tmp_path / "model").mkdir()
    (tmp_path / "model/a").symlink_to("/etc/passwd")
    with pytest.raises(InvalidArgument, match="is a symbolic link"):
        list_files(tmp_path)


def test_damage_is_noticed_wherever_it_is(tmp_path: Path) -> None:
    """A bit, an end that is missing, and one that is too much."""
    data, digest = pack(make_version(tmp_path / "version"))
    middle = len(data) // 2
    damaged = {
        "flipped": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
        "cut": data[:-1],
        "cut in its index": data[:100],
        "empty": b"",
        "longer": data + b"x",
        "of another format": b"x" + data[1:],
        "with an endless index": data[:18] + b"\xff" * 8 + data[26:],
        "with a broken index": data[:26] + b"{" + data[26:],
        "with a deep index": _DEEP,
    }
    for name, broken in damaged.items():
        with pytest.raises(DamagedPackError):
            unpack(io.BytesIO(broken), digest, tmp_path / name, everything)
    with pytest.raises(DamagedPackError, match="twice"):
        raw, found = pack_raw(PackedFile("model/a"), PackedFile("model/a"))
        unpack(io.BytesIO(raw), found, tmp_path / "twice", everything)


def test_a_file_that_grows_meanwhile_is_no_part_of_a_pack(tmp_path: Path) -> None:
    folder = make_version(tmp_path / "version")
    index = PackIndex(list_files(folder))
    (folder / "code/packages/user.py").write_text("ANSWER = 4321\n")

    with pytest.raises(Unavailable, match="was changed"):
        write_pack(folder, index, lambda _: None)


@pytest.mark.parametrize("kind", ["pipe", "endless device", "link to a file as long", "folder", "socket"])
def test_what_takes_the_place_of_a_file_is_neither_waited_for_nor_packed(tmp_path: Path, kind: str) -> None:
    folder = make_version(tmp_path / "version")
    index = PackIndex(list_files(folder))
    file, secret = folder / "code/packages/user.py", tmp_path / "secret"
    content = file.read_bytes()
    file.unlink()
    match kind:
        case "pipe":
            os.mkfifo(file)
        case "endless device":
            file.symlink_to("/dev/zero")
        case "link to a file as long":
            secret.write_bytes(b"s" * len(content))
            file.symlink_to(secret)
        case "folder":
            file.mkdir()
        case "socket":
            # Paths of sockets are short.
            with socket.socket(socket.AF_UNIX) as made, contextlib.chdir(file.parent):
                made.bind(file.name)
    written = bytearray()

    with pytest.raises(Unavailable, match="was changed"):
        write_pack(folder, index, written.extend)
    assert b"ssss" not in written


def test_no_more_is_read_of_a_file_than_it_had(tmp_path: Path) -> None:
    """Who writes to it faster than it is read would fill the disk."""
    folder = make_version(tmp_path / "version")
    index = PackIndex(list_files(folder))
    os.truncate(folder / "code/packages/user.py", 1 << 40)
    written = bytearray()

    with pytest.raises(Unavailable, match="was changed"):
        write_pack(folder, index, written.extend)
    assert len(written) < 4 << 20
