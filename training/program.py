"""What a job's program needs before it can run: its packages, installed, and its folder.

Packages are installed once per content: an entry of the cache is used in place, as long as the job lasts.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from serving.artifacts import package_cache
from serving.artifacts.local_folder_policy import LocalFolderPolicy
from serving.artifacts.package_cache import InstalledCode
from serving.artifacts.storage import ArtifactFetcher, HeldEntry
from serving.artifacts.storage.file_system import parse_storage_uri
from serving.errors import ModelError, ServingError, Unavailable
from training.messages import TrainingFailure, TrainingRequest
from training.replicas.containers import fetch_images

# Modules that every program finds.
PROVIDED = Path(__file__).with_name("provided")
_RESULT_FILE = "installed.json"
# Local archives of so many bytes together are read by the process that has to report in time.
_QUICK_BYTES = 64 << 20
# Names of modules in a message.
_SHOWN_MODULES = 10


class InstallResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The digest of the entry with the installed packages, or why there is none.

    `images` are the engine's ids of the images of containers, by their names.
    """

    digest: str = ""
    images: dict[str, str] = {}
    failed: TrainingFailure | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """How the program is run: folders of its modules, and the Python, "" for our own.

    `arguments` are all that it gets; `entry` is held while it may run. `job_dir` is the folder, "" for none,
    as the program is told it, and `images` are the ids of those that containers are made of.
    """

    arguments: tuple[str, ...]
    job_dir: str = ""
    installed: InstalledCode = InstalledCode()
    entry: HeldEntry | None = None
    images: Mapping[str, str] = field(default_factory=dict)

    def close(self) -> None:
        if self.entry is not None:
            self.entry.close()


class ProgramBuilder:
    """Makes the program of a request; raises ServingError."""

    def __init__(self, request: TrainingRequest) -> None:
        self._request = request
        self._folders = LocalFolderPolicy(request.allowed_folders, request.refused_folders)
        self._cache = ArtifactFetcher(Path(request.cache_dir), request.cache_bytes, folders=self._folders)
        self._result_file = Path(request.scratch_dir, _RESULT_FILE)
        if str(PROVIDED) not in sys.path:
            sys.path.append(str(PROVIDED))

    def find(self) -> Program | None:
        """The program, if that takes milliseconds: without packages, or with local ones in the cache."""
        request = self._request
        if request.engine is not None:
            return None
        if not request.packages:
            return Program(*self._prepare_request_arguments(), InstalledCode(interpreter=request.interpreter))
        if not _are_quickly_read(request.packages):
            return None
        return self._hold(self._digest(self._fetch_archives()))

    def install(self) -> None:
        """Fill the cache, or have images pulled; in a process of its own, as that takes long.

        What pip says goes to standard output. Builds run code of the packages.
        """
        logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
        logging.getLogger("serving.artifacts").setLevel(logging.DEBUG)
        # pip runs as processes, which shall count them as installed.
        os.environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, (os.environ.get("PYTHONPATH"), str(PROVIDED)))
        )
        engine = self._request.engine
        try:
            if engine is not None:
                result = InstallResult(images=fetch_images(engine, self._request.groups))
            else:
                result = InstallResult(self._install_packages())
        except ServingError as error:
            # Nothing is to be loaded here: what a model's error says without its category.
            message = error.detail if isinstance(error, ModelError) else error.message
            result = InstallResult(failed=TrainingFailure(error.status, message))
        self._result_file.write_bytes(msgspec.json.encode(result))

    def _install_packages(self) -> str:
        """Returns the digest of the entry."""
        request = self._request
        archives = self._fetch_archives()
        digest = self._digest(archives)
        self._cache.build_if_absent(
            digest,
            lambda work: package_cache.build_entry(
                archives, work, request.interpreter, request.install_seconds, request.runtime_version
            ),
        )
        return digest

    def read_installed(self) -> Program | TrainingFailure:
        """What `install` has made."""
        result = msgspec.json.decode(self._result_file.read_bytes(), type=InstallResult)
        if result.failed is not None:
            return result.failed
        if result.images:
            return Program(*self._prepare_request_arguments(), images=result.images)
        # Another process may be looking at the entry.
        program = self._hold(result.digest, wait=True)
        if program is None:
            raise Unavailable("The installed packages were removed from the cache before they were used.")
        return program

    def _hold(self, digest: str, *, wait: bool = False) -> Program | None:
        entry = self._cache.hold(digest, wait=wait)
        if entry is None:
            return None
        return Program(*self._prepare_request_arguments(), package_cache.read_entry(entry.folder), entry)

    def _digest(self, archives: Sequence[Path]) -> str:
        return package_cache.digest_inputs(archives, self._request.interpreter)

    def _fetch_archives(self) -> list[Path]:
        folder = Path(self._request.scratch_dir, "archives")
        uris = enumerate(self._request.packages)
        return [self._cache.fetch_file(uri, folder / str(number)) for number, uri in uris]

    def prepare_arguments(self, args: Sequence[str], job_dir: str) -> tuple[tuple[str, ...], str]:
        """All arguments, and the job folder; a local one is made, and named by its path.

        Raises ServingError.
        """
        path = job_dir
        if path and not path.startswith("gs://"):
            _, path = parse_storage_uri(path)
            self._folders.check_path(path)
            try:
                Path(path).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise Unavailable(f"The folder {path} cannot be made: {error.strerror}.") from error
        return (*args, *(("--job-dir", path) if path else ())), path

    def _prepare_request_arguments(self) -> tuple[tuple[str, ...], str]:
        return self.prepare_arguments(self._request.args, self._request.job_dir)


def _are_quickly_read(uris: Iterable[str]) -> bool:
    """Whether all are small files of this machine; those that are not there are quickly missed."""
    places = [parse_storage_uri(uri) for uri in uris]
    if any(bucket for bucket, _ in places):
        return False
    size = 0
    for _, path in places:
        with contextlib.suppress(OSError):
            size += Path(path).stat().st_size
    return size <= _QUICK_BYTES


def explain_missing_module(module: str, said: str, folders: Iterable[Path]) -> str:
    """What to do where a program could not be found, as its last line says; "" if it failed otherwise.

    `folders` are those of its packages.
    """
    words = (f": No module named {module}", f": Error while finding module specification for {module!r}")
    if not any(text in said for text in words):
        return ""
    names = sorted({name for folder in folders for name in _list_modules(folder)})
    more = f", and {len(names) - _SHOWN_MODULES} more" if len(names) > _SHOWN_MODULES else ""
    shown = f" They have {', '.join(names[:_SHOWN_MODULES])}{more}." if names else ""
    return f"Set pythonModule to a module of the packages.{shown}"


def _list_modules(folder: Path) -> Iterator[str]:
    """Those that can be run."""
    for path in folder.rglob("*.py"):
        parts = path.relative_to(folder).with_suffix("").parts
        if parts[-1] == "__main__":
            parts = parts[:-1]
        if parts and parts[-1] != "__init__" and all(part.isidentifier() for part in parts):
            yield ".".join(parts)
