"""Prepares a version's files on disk: fetches the model and installs its packages, in a process of its own.

The gateway starts `python -m serving.artifacts.prepare`: it never loads a storage client itself, and build
scripts of users' packages run outside of it. One PreparationRequest comes in on stdin, one PreparationReport
per line goes out on stdout, the last with `done` or `failed`; logs go to stderr. The exit status is 0 also
when the preparation failed.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from pathlib import Path, PurePosixPath

import msgspec

from serving import container_engine
from serving.artifacts import package_cache, packages
from serving.artifacts.local_folder_policy import LocalFolderPolicy
from serving.artifacts.package_cache import InstalledCode
from serving.artifacts.package_imports import find_imported_framework
from serving.artifacts.storage import ArtifactFetcher, FetchResult
from serving.artifacts.version_pack import ARCHIVES
from serving.errors import (
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    ServingError,
    Unavailable,
)
from serving.frameworks import DEFAULT_PILOT, Framework, find_by_files, import_object

logger = logging.getLogger(__name__)

# No space, over the quota, over the size that files may have, read-only.
NO_SPACE_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}
# Most seconds between two heartbeats.
_HEARTBEAT_SECONDS = 5.0
_READ, _READ_FOLDER = 0o444, 0o555
# What is reported as itself; all else is an internal error.
_REPORTED: tuple[type[ServingError], ...] = (
    InvalidArgument, NotFound, PermissionDenied, FailedPrecondition, ResourceExhausted, Unavailable,
)  # fmt: skip


class PreparationPhase(StrEnum):
    """The step that has just begun."""

    FETCHING = "FETCHING"
    INSTALLING = "INSTALLING"


class PreparationRequest(msgspec.Struct, frozen=True):
    """What to prepare. `destination` becomes a folder with `model` and `code`; its old content is removed.

    `deployment_uri` may be empty if there are packages. `cache_bytes` limits the cache that servers share.
    `folders` are the local ones that may be fetched from; `build_timeout` is for each run of pip.
    `interpreter` is the Python that runs the model, "" for the server's own; `runtime_version` is the
    version's, if it has one. `image` is that of a container that serves the model, run by `engine`.
    `keeps_archives`: those of the packages are left in the folder `archives` beside `code`.
    """

    deployment_uri: str
    package_uris: tuple[str, ...]
    destination: str
    cache_dir: str
    cache_bytes: int
    folders: LocalFolderPolicy = LocalFolderPolicy()
    build_timeout: float | None = None
    interpreter: str = ""
    runtime_version: str = ""
    image: str = ""
    engine: str = ""
    keeps_archives: bool = False


class PreparedVersion(msgspec.Struct, frozen=True):
    """The model's folder, and the folders of the user's modules, in search order.

    `files` and `bytes` count the model's files; `digest` names their cache entry ("" without a model).
    `pilot` is the key of the one that imports what the files, or the modules of the packages, seem to need.
    `interpreter` is the Python that runs it, "" for the server's own; `image` the id of a container's image.
    """

    model_dir: str
    packages: tuple[str, ...]
    files: int
    bytes: int
    digest: str
    warnings: tuple[str, ...]
    pilot: str
    interpreter: str = ""
    image: str = ""


class ReportedError(msgspec.Struct, frozen=True):
    """A ServingError: the name of its google.rpc code, and its message."""

    status: str
    message: str


class PreparationReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of output. One field is set; none in a heartbeat."""

    phase: PreparationPhase | None = None
    done: PreparedVersion | None = None
    failed: ReportedError | None = None


def prepare_version(
    request: PreparationRequest, on_phase: Callable[[PreparationPhase], None]
) -> PreparedVersion:
    """Fetch and install. Raises what `ArtifactFetcher.fetch` and `packages.install_packages` raise."""
    _check_request(request)
    storage = ArtifactFetcher(Path(request.cache_dir), request.cache_bytes, folders=request.folders)
    destination = Path(request.destination)
    if destination.exists():
        # Left by an attempt that was killed.
        shutil.rmtree(destination)
    destination.mkdir(parents=True)

    on_phase(PreparationPhase.FETCHING)
    model = destination / "model"
    if request.deployment_uri:
        fetched = storage.fetch(request.deployment_uri, model)
    else:
        model.mkdir()
        fetched = FetchResult(0, 0, "")

    if request.image:
        # The container may be of another user than this process.
        _make_readable(model)
        image = container_engine.fetch_image(request.engine, request.image)
        return PreparedVersion(
            model_dir=str(model),
            packages=(),
            files=fetched.files,
            bytes=fetched.bytes,
            digest=fetched.digest,
            warnings=(),
            pilot=DEFAULT_PILOT,
            image=image,
        )

    frameworks = find_by_files({file.name for file in model.iterdir() if file.is_file()})
    # User code reads its files itself, and an old library reads only its own formats.
    warnings = () if request.package_uris or request.interpreter else _convert_files(model, frameworks)
    # Another interpreter than the server's is needed only where the files depend on a version.
    needs_interpreter = all(framework.predictor_loaders for framework in frameworks)
    code = InstalledCode(interpreter=request.interpreter if needs_interpreter else "")
    pilots = [one.pilot for one in frameworks if one.user_imports or not request.package_uris]
    if request.package_uris:
        with _open_archive_folder(destination, keeps=request.keeps_archives) as folder:
            archives = [storage.fetch_file(uri, folder) for uri in request.package_uris]
            on_phase(PreparationPhase.INSTALLING)
            target = destination / "code"
            code = package_cache.install_cached(
                archives,
                target,
                request.interpreter,
                storage,
                request.build_timeout,
                runtime_version=request.runtime_version,
            )
        imported = map(find_imported_framework, code.folders)
        pilots += [framework.pilot for framework in imported if framework is not None]
    # Another process than the server's forks finds the packages first.
    hidden = () if code.interpreter else packages.describe_shadowed_packages(code.folders)
    return PreparedVersion(
        model_dir=str(model),
        packages=tuple(map(str, code.folders)),
        files=fetched.files,
        bytes=fetched.bytes,
        digest=fetched.digest,
        warnings=(*warnings, *code.warnings, *hidden),
        pilot=next(iter(pilots), DEFAULT_PILOT),
        interpreter=code.interpreter,
    )


@contextlib.contextmanager
def _open_archive_folder(destination: Path, *, keeps: bool) -> Iterator[Path]:
    if keeps:
        folder = destination / ARCHIVES
        folder.mkdir()
        yield folder
        return
    with tempfile.TemporaryDirectory(dir=destination, prefix=".archives-") as temporary:
        yield Path(temporary)


def _convert_files(model: Path, frameworks: Iterable[Framework]) -> tuple[str, ...]:
    """Bring files of old formats up to date, once for all nodes, and say which. Raises LoadFailed."""
    convert = [framework.convert_files for framework in frameworks if framework.convert_files]
    return tuple(text for path in convert for text in import_object(path)(model))


def _make_readable(folder: Path) -> None:
    """Let every user read the folder."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode | (_READ_FOLDER if path.is_dir() else _READ))


def _check_request(request: PreparationRequest) -> None:
    if not request.deployment_uri and not request.package_uris and not request.image:
        raise InvalidArgument("A version needs a deploymentUri or packageUris; both are empty.")
    names = [PurePosixPath(uri).name for uri in request.package_uris]
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgument(f"Several packageUris end in {name}. Their file names must differ.")


def main() -> None:
    """Run the PreparationRequest on stdin, and report on stdout."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    try:
        request = msgspec.json.decode(sys.stdin.buffer.read(), type=PreparationRequest)
        with heartbeat(lambda: _write_report(PreparationReport()), request.build_timeout):
            prepared = prepare_version(request, lambda phase: _write_report(PreparationReport(phase=phase)))
    except msgspec.DecodeError as error:
        _write_report(
            PreparationReport(
                failed=ReportedError(InvalidArgument.status, f"Not a request to prepare: {error}")
            )
        )
    except Exception as error:
        if not isinstance(error, ServingError):
            logger.exception("preparation failed")
        _write_report(PreparationReport(failed=describe_failure(error)))
    else:
        _write_report(PreparationReport(done=prepared))


def describe_failure(error: Exception) -> ReportedError:
    """What to report of an error."""
    match error:
        case ServingError():
            return ReportedError(error.status, error.message)
        case OSError():
            return _disk_failure(error)
        case _:
            return ReportedError(Internal.status, f"{type(error).__name__}: {error}")


def to_serving_error(failed: ReportedError) -> ServingError:
    """The error that was reported."""
    return next((kind for kind in _REPORTED if kind.status == failed.status), Internal)(failed.message)


def _disk_failure(error: OSError) -> ReportedError:
    """The failure for a full or read-only disk; any other error is internal."""
    if error.errno not in NO_SPACE_ERRNOS:
        return ReportedError(Internal.status, f"{type(error).__name__}: {error}")
    place = error.filename or "its state folder"
    return ReportedError(
        Unavailable.status,
        f"The server cannot keep the version's files: {error.strerror} ({place}). Free some space there, or "
        "make it writable; then delete the version and create it again.",
    )


@contextlib.contextmanager
def heartbeat(report: Callable[[], None], build_timeout: float | None) -> Iterator[None]:
    """Report within each `build_timeout`, after which the gateway would give this process up."""
    if build_timeout is None:
        yield
        return
    every, ended = min(_HEARTBEAT_SECONDS, build_timeout / 4), threading.Event()

    def send_heartbeats() -> None:
        while not ended.wait(every):
            report()

    thread = threading.Thread(target=send_heartbeats, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _write_report(report: PreparationReport) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
