"""Packs the files of versions into a folder or bucket that all servers of a database reach, and fetches them.

FOLDER/DATABASE/UID/DIGEST.pack     a whole pack, see `version_pack`

The gateway starts `python -m serving.artifacts.shared_versions`, as it does for preparations: one request
comes in on stdin, a SharingReport per line goes out on stdout.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from serving import container_engine
from serving.acceleration_record import DamagedRecordError, read_record, read_small_file
from serving.artifacts import package_cache, packages, version_pack
from serving.artifacts.prepare import NO_SPACE_ERRNOS, ReportedError, describe_failure, heartbeat
from serving.artifacts.storage import ArtifactFetcher, FileInfo, FileStore
from serving.artifacts.storage.local_files import sync_to_disk
from serving.artifacts.version_pack import (
    ACCELERATION,
    ARCHIVES,
    CODE,
    DamagedPackError,
    PackedCode,
    PackIndex,
)
from serving.errors import FailedPrecondition, NotFound, ServingError, Unavailable
from serving.scratch_folders import remove_folder

logger = logging.getLogger(__name__)

_PACK_SUFFIX, _DAMAGED_SUFFIX = ".pack", ".damaged"
_LOCAL_FILE = "shared.json"
# Files may change while they are packed: a node may compile modules.
_PACK_TRIES, _FETCH_TRIES = 3, 2
_NAMES_PER_LINE = 1000
_FLUSHED_ONE_BY_ONE = 200
# What the disk must have left besides.
_SPARE_BYTES = 64 << 20

SILENCE_SECONDS = 60.0
"""Within so many the process reports something."""


class LocalFiles(msgspec.Struct, frozen=True):
    """The files of a version on this machine: those of the pack with the digest `pack`.

    `packages` are the folders of modules, in search order, and `interpreter` the Python that runs them,
    relative to the version's folder where they are in it. `is_as_packed` is False where packages were
    installed here. `bytes` is the size of what was packed.
    """

    pack: str
    packages: tuple[str, ...] = ()
    interpreter: str = ""
    is_as_packed: bool = True
    bytes: int = 0


class UsedFiles(NamedTuple):
    """The files of the version `uid`, which were in use at `used_at`, in seconds since 1970.

    `is_replaceable`: a fetch would bring back all that there is to know of them.
    """

    used_at: float
    uid: str
    local: LocalFiles
    is_replaceable: bool


class InstallSettings(msgspec.Struct, frozen=True):
    """How packages of a version are installed: by the Python `interpreter`, "" for the server's own."""

    interpreter: str
    runtime_version: str
    cache_dir: str
    cache_bytes: int
    build_timeout: float


class PublishRequest(msgspec.Struct, frozen=True, tag="publish", kw_only=True):
    """Pack the version in `folder` into the folder `uri`, and note there as what; `local.pack` is ""."""

    folder: str
    uri: str
    local: LocalFiles
    code: InstallSettings


class FetchRequest(msgspec.Struct, frozen=True, tag="fetch", kw_only=True):
    """Make `folder` of the pack `local.pack` in the folder `uri`; `folder` is replaced if it is there.

    `local` is what holds for files as they were packed. `image` is that of the version's container, run by
    `engine`, and `image_id` the id that it must have.
    """

    folder: str
    uri: str
    local: LocalFiles
    code: InstallSettings
    image: str = ""
    image_id: str = ""
    engine: str = ""


class ListRequest(msgspec.Struct, frozen=True, tag="list"):
    """List the packs below `uri`."""

    uri: str


class RemoveRequest(msgspec.Struct, frozen=True, tag="remove"):
    """Remove packs, each by `UID/DIGEST`, or all of a version by `UID`."""

    uri: str
    names: tuple[str, ...]


SharingRequest = PublishRequest | FetchRequest | ListRequest | RemoveRequest


class SharingReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of output: the `names` of some packs, each as `UID/DIGEST`, or the end.

    All fields are left out in a heartbeat.
    """

    names: tuple[str, ...] = ()
    local: LocalFiles | None = None
    is_done: bool = False
    failed: ReportedError | None = None


def read_local_files_record(folder: Path) -> LocalFiles | None:
    """What the folder of a version has; None if it was not packed or fetched to its end."""
    try:
        return msgspec.json.decode(read_small_file(folder / _LOCAL_FILE), type=LocalFiles)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def refresh_used_files(folder: Path, in_use: Collection[str]) -> list[UsedFiles]:
    """The versions in a folder that have a pack; those `in_use` are so now."""
    found = []
    for version in folder.iterdir() if folder.is_dir() else ():
        note = version / _LOCAL_FILE
        if version.name in in_use:
            with contextlib.suppress(OSError):
                os.utime(note)
        local = read_local_files_record(version)
        with contextlib.suppress(OSError):
            if local is not None:
                used_at = note.stat().st_mtime
                found.append(UsedFiles(used_at, version.name, local, not _is_acceleration_withdrawn(version)))
    return sorted(found)


def _is_acceleration_withdrawn(folder: Path) -> bool:
    """Whether requests to this server have disproved what the pack says of faster ways."""
    try:
        record = read_record(folder / ACCELERATION)
    except DamagedRecordError:
        return False
    return record is not None and bool(record.withdrawn)


def publish_version(request: PublishRequest, files: FileStore) -> LocalFiles:
    """Pack a version; the pack appears when it is whole.

    Raises what FileStore raises, and InvalidArgument for files that cannot be packed.
    """
    folder = Path(request.folder)
    for attempt in range(_PACK_TRIES):
        index = PackIndex(version_pack.list_files(folder), _describe_code(folder, request))
        try:
            # Its name is needed before it is written. Nothing is kept of it meanwhile, on disk or in memory.
            digest = version_pack.write_pack(folder, index, lambda _: None)
            _write_pack(folder, index, digest, request.uri, files)
        except (Unavailable, FileNotFoundError):
            if attempt + 1 == _PACK_TRIES:
                raise
        else:
            break
    size = sum(file.size for file in index.files)
    local = msgspec.structs.replace(request.local, pack=digest, bytes=size)
    _write_local_files(folder, local)
    logger.info("%s is packed: %d files, %d bytes, in %s", folder.name, len(index.files), size, request.uri)
    return local


def fetch_version(request: FetchRequest, files: FileStore) -> LocalFiles:
    """Make the folder of a version, which appears when it is whole.

    Raises NotFound without its pack, Unavailable for a damaged one or too little room, LoadFailed where its
    packages cannot be installed here, and what FileStore raises.
    """
    if request.image:
        _fetch_image(request)
    folder = Path(request.folder)
    partial = folder.with_name(f".{folder.name}.part")
    try:
        index = _unpack(request, files, partial)
        local = msgspec.structs.replace(request.local, bytes=sum(file.size for file in index.files))
        if index.code is not None and not _is_code_usable(index, request.code):
            local = _install_code(request, index, local, partial)
        _write_local_files(partial, local)
        _flush_files(partial, index)
        remove_folder(folder)
        partial.rename(folder)
        sync_to_disk(folder.parent)
    except OSError as error:
        if error.errno in NO_SPACE_ERRNOS:
            what = f"The files of the version cannot be kept in {folder.parent}: {error.strerror}"
            raise _no_room_error(what) from error
        raise
    finally:
        remove_folder(partial)
    return local


def list_packs(uri: str, files: FileStore) -> Iterator[str]:
    """The names of all whole packs, as `UID/DIGEST`."""
    system, folder = files.resolve(uri)
    start = f"{system.uri(folder)}/"
    for file in system.list(folder):
        uid, _, name = file.uri.removeprefix(start).partition("/")
        if name.endswith(_PACK_SUFFIX) and "/" not in name:
            yield f"{uid}/{name.removesuffix(_PACK_SUFFIX)}"


def remove_packs(request: RemoveRequest, files: FileStore) -> None:
    for name in request.names:
        uri = f"{request.uri}/{name}"
        if "/" in name:
            files.delete(f"{uri}{_PACK_SUFFIX}")
        else:
            files.delete_folder(uri)


def _write_pack(folder: Path, index: PackIndex, digest: str, uri: str, files: FileStore) -> None:
    """Raises Unavailable, and writes nothing, if the files are others by now than those of the digest."""
    with files.create(_pack_uri(uri, digest)) as out:
        if version_pack.write_pack(folder, index, out.write) != digest:
            raise Unavailable(f"The files in {folder} change while they are packed; try again.")


def _pack_uri(uri: str, digest: str) -> str:
    return f"{uri}/{digest}{_PACK_SUFFIX}"


def _write_local_files(folder: Path, local: LocalFiles) -> None:
    part = folder / f"{_LOCAL_FILE}.part"
    part.write_bytes(msgspec.json.encode(local))
    part.replace(folder / _LOCAL_FILE)


def _flush_files(folder: Path, index: PackIndex) -> None:
    """Have the files survive a power cut, as the note does that they are whole."""
    if len(index.files) > _FLUSHED_ONE_BY_ONE:
        os.sync()  # of the whole machine, for which requests wait
        return
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            sync_to_disk(path)


def _describe_code(folder: Path, request: PublishRequest) -> PackedCode | None:
    if not (folder / CODE).is_dir():
        return None
    # An environment has links to the Python that it was made of.
    is_environment = request.local.interpreter.startswith(f"{CODE}/")
    python = (request.code.interpreter or sys.executable) if is_environment else ""
    return PackedCode(_describe_platform(request.code), python)


def _describe_platform(code: InstallSettings) -> str:
    """What installed packages depend on: machine, C library, Python, and the libraries beside them."""
    python = code.interpreter or sys.executable
    digest = hashlib.sha256("\n".join(packages.list_libraries(python)).encode()).hexdigest()
    return f"{sysconfig.get_platform()} {'-'.join(platform.libc_ver())} {digest}"


def _is_code_usable(index: PackIndex, code: InstallSettings) -> bool:
    """Whether the installed packages of a pack are good here."""
    packed, python = index.code, code.interpreter or sys.executable
    return packed is not None and packed == PackedCode(
        _describe_platform(code), packed.interpreter and python
    )


def _fetch_image(request: FetchRequest) -> None:
    found = container_engine.fetch_image(request.engine, request.image)
    if found != request.image_id:
        raise FailedPrecondition(
            f"The image {request.image} is {found} here, and was {request.image_id} when the version was "
            "created. Pull that one on this machine, or create the version again."
        )


def _unpack(request: FetchRequest, files: FileStore, target: Path) -> PackIndex:
    uri = _pack_uri(request.uri, request.local.pack)
    system, name = files.resolve(uri)
    for _ in range(_FETCH_TRIES):
        try:
            found = system.stat(name)
        except NotFound as error:
            raise NotFound(
                f"The files of the version are not in {request.uri} (setting shared_versions_uri). A server "
                "that has them puts them there within some minutes; else delete the version, and create it "
                "again."
            ) from error
        try:
            return _try_unpack(request, files, found, target)
        except DamagedPackError as error:
            damage = error
    # Not removed: it may be this machine that is at fault.
    files.move(uri, f"{uri}{_DAMAGED_SUFFIX}")
    raise Unavailable(
        f"{uri} is damaged: {damage}. It is kept as {name.rpartition('/')[2]}{_DAMAGED_SUFFIX}. A server "
        "that has the version's files puts them there again within some minutes; else delete the version, "
        "and create it again."
    )


def _try_unpack(request: FetchRequest, files: FileStore, found: FileInfo, target: Path) -> PackIndex:
    remove_folder(target)
    target.mkdir(parents=True)
    if found.size + _SPARE_BYTES > shutil.disk_usage(target).free:
        raise _no_room_error(
            f"There is no room for the {found.size >> 20} MiB of the version's files in {target.parent}"
        )

    def is_wanted(index: PackIndex, top: str) -> bool:
        return top != CODE or _is_code_usable(index, request.code)

    with files.open(found) as stream:
        try:
            return version_pack.unpack(stream, request.local.pack, target, is_wanted)
        except (FileExistsError, NotADirectoryError, OverflowError, ValueError) as error:
            # Names that exclude each other, and times that there are not.
            raise DamagedPackError(str(error)) from error


def _no_room_error(what: str) -> Unavailable:
    """Of a version that is READY elsewhere: it need not be created again."""
    return Unavailable(f"{what}. Free some space there; the next request tries again.")


def _install_code(request: FetchRequest, index: PackIndex, local: LocalFiles, folder: Path) -> LocalFiles:
    """Install the packages of a version that another kind of machine has packed."""
    archives = sorted((folder / ARCHIVES).glob("*")) if (folder / ARCHIVES).is_dir() else []
    if not archives:
        packed_for = index.code.platform if index.code else "another machine"
        raise FailedPrecondition(
            f"The packages of the version were installed for {packed_for}, not for this server, and their "
            "archives are not kept. Give all servers the same Python and libraries, or create the version "
            "again."
        )
    code = request.code
    logger.info("the packages of %s are installed anew: they are for another machine", folder.name)
    installed = package_cache.install_cached(
        archives,
        folder / CODE,
        code.interpreter,
        ArtifactFetcher(Path(code.cache_dir), code.cache_bytes),
        code.build_timeout,
        runtime_version=code.runtime_version,
    )
    return msgspec.structs.replace(
        local,
        packages=tuple(str(path.relative_to(folder)) for path in installed.folders),
        interpreter=make_relative(installed.interpreter, folder),
        is_as_packed=False,
    )


def make_relative(path: str, folder: Path) -> str:
    """A path relative to the version's folder if it is in it, else as it is."""
    return str(Path(path).relative_to(folder)) if path and Path(path).is_relative_to(folder) else path


def _answer(request: SharingRequest, report: Callable[[SharingReport], None]) -> SharingReport:
    files = FileStore()
    match request:
        case PublishRequest():
            return SharingReport(local=publish_version(request, files), is_done=True)
        case FetchRequest():
            return SharingReport(local=fetch_version(request, files), is_done=True)
        case ListRequest():
            names = tuple(list_packs(request.uri, files))
            for start in range(0, len(names), _NAMES_PER_LINE):
                report(SharingReport(names=names[start : start + _NAMES_PER_LINE]))
        case RemoveRequest():
            remove_packs(request, files)
    return SharingReport(is_done=True)


def main() -> None:
    """Do what the request on stdin asks for, and report on stdout."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    request: SharingRequest = msgspec.json.decode(sys.stdin.buffer.read(), type=SharingRequest)
    try:
        with heartbeat(lambda: _write_report(SharingReport()), SILENCE_SECONDS):
            last = _answer(request, _write_report)
    except Exception as error:
        if not isinstance(error, ServingError):
            logger.exception("the files of a version cannot be shared")
        last = SharingReport(failed=describe_failure(error))
    _write_report(last)


def _write_report(report: SharingReport) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
