"""The installed packages of a model in one file, for workers that do not reach the folders of this machine.

It is among the temporary files of the job, which workers read and write anyway. They unpack what the embedded
runner's workers import: neither pip nor a package index is needed there.
"""

from __future__ import annotations

import hashlib
import io
import socket
import sysconfig
import tarfile
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, BinaryIO

from batch.messages import ModelSource
from serving.artifacts.local_folder_policy import LocalFolderPolicy
from serving.artifacts.storage import ArtifactFetcher, FileStore
from serving.errors import FailedPrecondition, Unavailable

_NAME = "packages.tar"


@dataclass(frozen=True, slots=True)
class PackageArchive:
    """A tar archive at `uri` with `folders` folders of modules, called 0, 1, ... in search order.

    `digest` is its SHA-256: the modules are code, and others may be able to write where it is. `compiled_for`
    is the Python that compiled modules need, "" if there are none; `names` are the packages', for messages.
    """

    uri: str
    digest: str
    folders: int
    names: str
    compiled_for: str = ""


def write_packages(model: ModelSource, files: FileStore, folder: str) -> PackageArchive | None:
    """Write the packages of a model into the folder of a job's temporary files; None if it has none.

    Raises what FileStore raises, and OSError if they cannot be read.
    """
    if not model.packages:
        return None
    uri = f"{folder}/{_NAME}"
    with files.create(uri) as target:
        stream = _HashingWriter(target)
        with tarfile.open(fileobj=stream, mode="w|") as archive:
            for number, source in enumerate(model.packages):
                archive.add(source, str(number), filter=_leave_out_caches)
            is_compiled = any(name.endswith(tuple(EXTENSION_SUFFIXES)) for name in archive.getnames())
    return PackageArchive(
        uri,
        stream.digest.hexdigest(),
        len(model.packages),
        ", ".join(one.rpartition("/")[2] for one in model.package_uris),
        _describe_python() if is_compiled else "",
    )


def unpack_packages(
    archive: PackageArchive, target: Path, policy: LocalFolderPolicy | None = None
) -> tuple[Path, ...]:
    """Unpack into the empty folder `target`; returns the folders of modules, in search order.

    Raises FailedPrecondition for modules that are compiled for another Python, Unavailable if the archive is
    not the one that was written or there is no room, and what `ArtifactFetcher.fetch_file` raises.
    """
    here = _describe_python()
    if archive.compiled_for not in ("", here):
        raise FailedPrecondition(
            f"The packages {archive.names} have modules that are compiled for {archive.compiled_for}, and "
            f"the worker on {socket.gethostname()} has {here}: run the job from a machine like the workers'."
        )
    try:
        file = ArtifactFetcher(target / ".cache", 0, folders=policy).fetch_file(archive.uri, target)
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        if digest != archive.digest:
            raise Unavailable(
                f"The packages {archive.names} in {archive.uri} are not those that the job has written "
                f"there: their SHA-256 is {digest}."
            )
        with tarfile.open(file) as tar:
            tar.extractall(target, filter="data")
        file.unlink()
    except OSError as error:
        raise Unavailable(
            f"The packages {archive.names} cannot be unpacked on {socket.gethostname()}: {error}."
        ) from error
    return tuple(target / str(number) for number in range(archive.folders))


class _HashingWriter(io.RawIOBase):
    def __init__(self, target: BinaryIO) -> None:
        super().__init__()
        self._target = target
        self.digest = hashlib.sha256()

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return self._target.write(data)


def _leave_out_caches(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Compiled source is left out: processes of this machine may be writing it now."""
    return None if member.name.endswith("/__pycache__") else member


def _describe_python() -> str:
    """Its version, machine and C library: cpython-311-x86_64-linux-gnu."""
    return str(sysconfig.get_config_var("SOABI"))
