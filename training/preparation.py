"""What happens before a job's program can run: packages are installed, and the job's folder is made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from serving.artifacts import package_cache
from serving.artifacts.local_folder_policy import LocalFolderPolicy
from serving.artifacts.storage import ArtifactFetcher
from serving.errors import ServingError
from training.messages import TrainingFailure, TrainingRequest

_FILE_SCHEME = "file://"


class PreparedProgram(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the program is run: folders of its modules, the Python, "" for our own, and where it may write.

    `job_dir` is the one of the request, as the program can open it: local folders are paths.
    """

    folders: tuple[str, ...] = ()
    interpreter: str = ""
    job_dir: str = ""
    warnings: tuple[str, ...] = ()
    failed: TrainingFailure | None = None


def prepare_program(request: TrainingRequest) -> PreparedProgram:
    """Install packages and make the folder; an error is part of the result."""
    try:
        folders = LocalFolderPolicy(request.allowed_folders, request.refused_folders)
        job_dir = _make_job_dir(request.job_dir, folders)
        installed = _install_packages(request, folders)
    except ServingError as error:
        return PreparedProgram(failed=TrainingFailure(error.status, error.message))
    return PreparedProgram(
        folders=tuple(map(str, installed.folders)),
        interpreter=installed.interpreter,
        job_dir=job_dir,
        warnings=installed.warnings,
    )


def _make_job_dir(uri: str, folders: LocalFolderPolicy) -> str:
    """Raises FailedPrecondition for a local folder that is none of a caller's."""
    path = uri.removeprefix(_FILE_SCHEME)
    if path.startswith("/"):
        folders.check_path(path)
        Path(path).mkdir(parents=True, exist_ok=True)
    return path


def _install_packages(request: TrainingRequest, folders: LocalFolderPolicy) -> package_cache.InstalledCode:
    if not request.packages:
        return package_cache.InstalledCode(interpreter=request.interpreter)
    storage = ArtifactFetcher(Path(request.cache_dir), request.cache_bytes, folders=folders)
    archives = _fetch_archives(request.packages, storage, Path(request.scratch_dir, "archives"))
    return package_cache.install_cached(
        archives,
        Path(request.scratch_dir, "packages"),
        request.interpreter,
        storage,
        request.install_seconds,
        runtime_version=request.runtime_version,
    )


def _fetch_archives(uris: Sequence[str], storage: ArtifactFetcher, folder: Path) -> list[Path]:
    return [storage.fetch_file(uri, folder / str(number)) for number, uri in enumerate(uris)]
