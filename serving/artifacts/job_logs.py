"""`python -m serving.artifacts.job_logs`: copies logs of jobs into a folder or bucket, and fetches them.

FOLDER/UID/SERVER.ATTEMPT.tar.gz     what the log of a job had on a server when its attempt there had ended

One request comes in on stdin, one JobLogReport goes out on stdout. The gateway runs it as a process: it loads
no storage client itself.
"""

from __future__ import annotations

import gzip
import logging
import os
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from serving.artifacts.prepare import ReportedError, describe_failure
from serving.artifacts.storage import FileStore
from serving.errors import NotFound, ServingError, Unavailable
from serving.scratch_folders import remove_folder

logger = logging.getLogger(__name__)

# Of the folder of a job: what its processes have written to stderr, and what they log.
LOG_FILE, LOG_FOLDER = "log", "logs"
_COMPRESSION = 6
# Seconds for which the storage is asked again.
_RETRY_SECONDS = 20.0


class CopyLogRequest(msgspec.Struct, frozen=True, tag="copy"):
    """Write the log that is in the folder of a job to `uri`."""

    folder: str
    uri: str


class FetchLogRequest(msgspec.Struct, frozen=True, tag="fetch"):
    """Make `folder`, with the log that is at `uri`."""

    uri: str
    folder: str


class RemoveLogsRequest(msgspec.Struct, frozen=True, tag="remove"):
    """Remove everything in folders, if they exist."""

    uris: tuple[str, ...]


JobLogRequest = CopyLogRequest | FetchLogRequest | RemoveLogsRequest


class JobLogReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """What came of a request. `is_found` is False where nothing is at the URI of a FetchLogRequest."""

    is_found: bool = True
    failed: ReportedError | None = None


def copy_log(request: CopyLogRequest, files: FileStore) -> None:
    """Raises what FileStore raises, and OSError. The copy appears when it is whole."""
    folder = Path(request.folder)
    with (
        files.create(request.uri) as out,
        gzip.GzipFile(fileobj=out, mode="wb", compresslevel=_COMPRESSION) as packed,
        tarfile.open(fileobj=packed, mode="w|") as archive,
    ):
        for file in _list_log_files(folder):
            archive.add(file, str(file.relative_to(folder)), recursive=False)


def fetch_log(request: FetchLogRequest, files: FileStore) -> bool:
    """Whether there is one; its folder appears when it is whole. Raises Unavailable for a damaged one."""
    try:
        [found] = files.glob(request.uri)
    except NotFound:
        return False
    folder = Path(request.folder)
    part = folder.with_name(f".{folder.name}.part")
    remove_folder(part)
    part.mkdir(parents=True)
    try:
        with files.open(found) as stream, tarfile.open(fileobj=stream, mode="r|gz") as archive:
            for member in archive:
                if member.isreg():
                    archive.extract(member, part, filter="data")
        remove_folder(folder)
        part.rename(folder)
    except (tarfile.TarError, EOFError) as error:
        raise Unavailable(f"{request.uri} is damaged: {error}.") from error
    finally:
        remove_folder(part)
    return True


def _list_log_files(folder: Path) -> Iterator[Path]:
    """Regular files alone: programs can write there."""
    for file in (folder / LOG_FILE, *sorted((folder / LOG_FOLDER).glob("*"))):
        if file.is_file() and not file.is_symlink():
            yield file


def _answer(request: JobLogRequest) -> JobLogReport:
    files = FileStore(retry_seconds=_RETRY_SECONDS)
    match request:
        case CopyLogRequest():
            copy_log(request, files)
        case FetchLogRequest():
            return JobLogReport(is_found=fetch_log(request, files))
        case RemoveLogsRequest(uris=uris):
            for uri in uris:
                files.delete_folder(uri)
    return JobLogReport()


def main() -> None:
    """Do what the request on stdin asks for, and report on stdout."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    request: JobLogRequest = msgspec.json.decode(sys.stdin.buffer.read(), type=JobLogRequest)
    out = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        report = _answer(request)
    except Exception as error:
        if not isinstance(error, ServingError):
            logger.exception("the log of a job cannot be shared")
        report = JobLogReport(failed=describe_failure(error))
    os.write(out, msgspec.json.encode(report) + b"\n")


if __name__ == "__main__":
    main()
