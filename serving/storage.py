"""Artefact URI (`gs://bucket/folder`, `file:///folder` or a plain path) to a local directory.

A fetch lists the source, copies its files once into a cache entry named after what was listed, and
hard-links the entry into the destination. The link count of a cached file is its reference count: an
entry none of whose files is linked elsewhere is free to go when the cache is over its cap.

    cache/DIGEST/      a complete entry, never changed after one rename put it there
    cache/.partial/    what is being built or torn down, by whoever holds the entry's lock
    cache/.locks/      one flock per entry in work; the kernel frees it when its holder dies

Nothing of google.cloud.storage is imported before a `gs://` URI is touched.
"""

from __future__ import annotations

import errno
import fcntl
import gzip
import hashlib
import json
import os
import re
import shutil
import stat
import time
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol
from urllib.parse import unquote, urlsplit

from serving.errors import Internal, InvalidArgument, NotFound, PermissionDenied, ServingError, Unavailable

MAX_FILES = 1000
# Enough to tell a folder that is somewhat too large how large it is, without listing a whole data lake.
_MAX_LISTED = 10 * MAX_FILES
# Below the ten connections that the storage client's HTTP pool keeps.
_THREADS = 8
_DIGEST = re.compile("[0-9a-f]{64}")
# File systems and users for which a hard link is refused while a copy works.
_UNLINKABLE = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP}


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a fetch put in place: number of files, their size in bytes, hex digest of the cache entry."""

    files: int
    bytes: int
    digest: str


class Storage:
    """Fetches and writes artefacts.

    `cache` is a folder that several processes may share and `capacity` its cap in bytes, which only
    artefacts in use may exceed. A transient failure of Cloud Storage is retried for `patience` seconds.
    """

    def __init__(self, cache: Path, capacity: int, *, patience: float = 60.0) -> None:
        self._cache = _Cache(cache, capacity)
        self._gcs = _Gcs(patience)

    def fetch(self, uri: str, destination: Path) -> Fetched:
        """Copy the folder `uri` to `destination`, which must not exist; it appears complete or not at all.

        Raises InvalidArgument (not a folder, too many files, unsafe names, unknown scheme), NotFound,
        PermissionDenied, or Unavailable when the storage keeps failing or the source changes meanwhile.
        """
        folder = self._folder(uri)
        files = folder.files()
        _check_names(folder.uri, files)
        digest = _digest(folder.uri, files)
        self._cache.fetch(digest, files, folder.copy, destination)
        return Fetched(len(files), sum(file.size for file in files), digest)

    def fetch_file(self, uri: str, destination_dir: Path) -> Path:
        """Copy the one file `uri` into `destination_dir` under its own name. Raises as `fetch` does."""
        bucket, name = _parse(uri)
        folder, file = self._gcs.file(bucket, name) if bucket else _local_file(Path(name))
        _check_names(folder.uri, [file])
        destination_dir.mkdir(parents=True, exist_ok=True)
        target = destination_dir / file.name
        partial = target.with_name(f".{target.name}.part")
        folder.copy(file, partial)
        return partial.rename(target)

    def write(self, uri: str, data: bytes) -> None:
        """Create or replace the object or file `uri`. Raises as `fetch` does."""
        bucket, name = _parse(uri)
        if bucket:
            self._gcs.write(bucket, name, data)
            return
        path = Path(name)
        with _local_errors(uri):
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f".{path.name}.{os.getpid()}.part")
            partial.write_bytes(data)
            partial.replace(path)

    def _folder(self, uri: str) -> _Folder:
        bucket, name = _parse(uri)
        return _GcsFolder(self._gcs, bucket, name) if bucket else _LocalFolder(Path(name))


def emulator_host() -> str:
    """Address of a Cloud Storage emulator as `http://host:port`, "" when the real one is meant.

    google-cloud-storage owns this variable and reads it by itself; settings of our own are read in `config`.
    """
    host = os.environ.get("STORAGE_EMULATOR_HOST", "")
    return host if not host or "://" in host else f"http://{host}"


def _parse(uri: str) -> tuple[str, str]:
    """A URI as (bucket, object name), or as ("", absolute path) for a local one; no trailing slash."""
    expected = "expected gs://bucket/folder, file:///folder or a path"
    if not uri or "\0" in uri:
        raise InvalidArgument(f"{uri!r} is no URI; {expected}.")
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return "", str(Path(uri).absolute())
    match scheme.lower():
        case "gs":
            bucket, _, name = rest.partition("/")
            if not (bucket[:1] + bucket[-1:]).isalnum():
                raise InvalidArgument(f"{uri} names no bucket; {expected}.")
            return bucket, name.rstrip("/")
        case "file":
            parts = urlsplit(uri)
            if parts.netloc not in {"", "localhost"} or not parts.path:
                raise InvalidArgument(f"{uri} names no local path; {expected}.")
            return "", str(Path(unquote(parts.path)))
        case _:
            raise InvalidArgument(f"{uri} has the unknown scheme {scheme}://; {expected}.")


# ---- what is listed ----


@dataclass(frozen=True, slots=True)
class _File:
    """One file of a folder: its relative name, size in bytes, and a text that changes with its content.

    `origin` is what the folder copies it from.
    """

    name: str
    size: int
    version: str
    origin: Any


class _Folder(Protocol):
    @property
    def uri(self) -> str:
        """The folder as messages and digests name it."""

    def files(self) -> list[_File]:
        """Every file below the folder, at most _MAX_LISTED. Raises when there is none."""

    def copy(self, file: _File, target: Path) -> None:
        """Write the very content that was listed to `target`. Called from several threads."""


def _check_names(uri: str, files: Sequence[_File]) -> None:
    if len(files) > MAX_FILES:
        count = f"at least {_MAX_LISTED}" if len(files) == _MAX_LISTED else str(len(files))
        raise InvalidArgument(
            f"{uri} holds {count} files; a model may have {MAX_FILES}. Name the folder of the model itself."
        )
    for file in files:
        if "\0" in file.name or {"", ".", ".."} & set(file.name.split("/")):
            raise InvalidArgument(
                f"{uri} holds {file.name!r}, whose name would lead out of the model's folder."
            )
    folders = {str(parent) for file in files for parent in PurePosixPath(file.name).parents}
    for file in files:
        if file.name in folders:
            raise InvalidArgument(f"{uri} holds {file.name!r} both as a file and as a folder; rename one.")


def _digest(uri: str, files: Sequence[_File]) -> str:
    listing = sorted((file.name, file.size, file.version) for file in files)
    return hashlib.sha256(json.dumps([uri, listing]).encode()).hexdigest()


# ---- local sources ----


@contextmanager
def _local_errors(uri: str) -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise PermissionDenied(f"The server may not open {error.filename or uri}.") from error
    except FileNotFoundError as error:
        raise NotFound(f"{error.filename or uri} does not exist on the server's machine.") from error


class _LocalFolder:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.uri = str(path)

    def files(self) -> list[_File]:
        with _local_errors(self.uri):
            if not self._path.exists():
                raise NotFound(
                    f"There is no folder {self.uri} on the server's machine. Check the path; the server "
                    "does not see folders of its client's machine."
                )
            if not self._path.is_dir():
                raise InvalidArgument(
                    f"{self.uri} is a single file, not a folder. Give its folder: {self._path.parent}"
                )
            files = list(islice(self._walk(), _MAX_LISTED))
        if not files:
            raise NotFound(f"The folder {self.uri} is empty. Put the model's files there first.")
        return files

    def _walk(self) -> Iterator[_File]:
        def fail(error: OSError) -> None:
            raise error

        for parent, folders, names in os.walk(self._path, onerror=fail, followlinks=True):
            links = [path for path in map(Path(parent).joinpath, folders) if path.is_symlink()]
            for link in links:
                if link.resolve() in {above.resolve() for above in link.parents}:
                    raise InvalidArgument(f"{link} is a symbolic link to a folder it lies in; remove it.")
            for name in names:
                yield _local(Path(parent, name), self._path)

    def copy(self, file: _File, target: Path) -> None:
        with _local_errors(self.uri):
            shutil.copyfile(file.origin, target)
            if _local(file.origin, self._path) != file:
                raise Unavailable(f"{file.origin} changed while it was being copied; try again.")


def _local(path: Path, root: Path) -> _File:
    if path.is_symlink() and not path.exists():
        raise InvalidArgument(f"{path} is a symbolic link to {path.readlink()}, which does not exist.")
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise InvalidArgument(f"{path} is not a regular file.")
    return _File(path.relative_to(root).as_posix(), status.st_size, str(status.st_mtime_ns), path)


def _local_file(path: Path) -> tuple[_Folder, _File]:
    with _local_errors(str(path)):
        if path.is_dir():
            raise InvalidArgument(f"{path} is a folder; expected a single file.")
        return _LocalFolder(path.parent), _local(path, path.parent)


# ---- Cloud Storage ----


class _Gcs:
    """Cloud Storage with its retries, and its errors in our words."""

    def __init__(self, patience: float) -> None:
        self._patience = patience

    def list(self, bucket: str, prefix: str) -> list[_File]:
        """At most _MAX_LISTED objects below `prefix`, without the placeholders that stand for folders."""
        with self._errors(f"gs://{bucket}/{prefix}", _no_bucket(bucket)):
            blobs = self._client.list_blobs(bucket, prefix=prefix, **self._calls)
            found = (_stored(blob, prefix) for blob in blobs if not blob.name.endswith("/"))
            return list(islice(found, _MAX_LISTED))

    def file(self, bucket: str, name: str) -> tuple[_Folder, _File]:
        """One object, as a file of the folder that holds it."""
        uri = f"gs://{bucket}/{name}"
        missing = NotFound(f"There is no object {uri}. Check the name, or upload it first.")
        if not name:
            raise InvalidArgument(f"{uri} is a bucket; expected a single object.")
        with self._errors(uri, missing):
            blob = self._client.bucket(bucket).get_blob(name, **self._calls)
        if blob is None:
            raise missing
        parent, slash, _ = name.rpartition("/")
        return _GcsFolder(self, bucket, parent), _stored(blob, parent + slash)

    def download(self, blob: Any, target: Path) -> None:
        """Write to `target` the generation that was listed, if its checksum is the one listed."""
        import google_crc32c  # noqa: PLC0415

        uri = f"gs://{blob.bucket.name}/{blob.name}"
        changed = Unavailable(f"{uri} was replaced or removed while it was being copied; try again.")
        with self._errors(uri, changed), target.open("wb") as file:
            # The client checks no download that it had to resume, so the sum is taken here. Raw: the sum
            # is that of the stored bytes, also of objects that are stored compressed.
            writer = _Summed(file, google_crc32c.Checksum())  # type: ignore[no-untyped-call]
            # A blob made anew: the download link of a listed one names the host it was uploaded through,
            # which for an emulator may be another than ours.
            object_ = blob.bucket.blob(blob.name, generation=blob.generation)
            object_.download_to_file(writer, raw_download=True, checksum=None, **self._calls)
        if writer.sum != blob.crc32c:
            raise Unavailable(
                f"{uri} arrived damaged: its CRC32C is {writer.sum}, not {blob.crc32c}; try again."
            )
        if blob.content_encoding == "gzip":
            _decompress(uri, target)

    def write(self, bucket: str, name: str, data: bytes) -> None:
        """Create or replace an object."""
        uri = f"gs://{bucket}/{name}"
        if not name:
            raise InvalidArgument(f"{uri} is a bucket; expected an object to write.")
        with self._errors(uri, _no_bucket(bucket)):
            blob = self._client.bucket(bucket).blob(name)
            blob.upload_from_string(data, content_type="application/octet-stream", **self._calls)

    @cached_property
    def _client(self) -> Any:
        from google.auth.credentials import AnonymousCredentials  # noqa: PLC0415
        from google.cloud.storage import Client  # noqa: PLC0415

        # No project is needed to read objects, and looking for one asks the metadata server for some 20 s.
        host = emulator_host()
        if not host:
            return Client(project=None)
        anonymous = AnonymousCredentials()  # type: ignore[no-untyped-call]
        return Client(project=None, credentials=anonymous, client_options={"api_endpoint": host})

    @cached_property
    def _calls(self) -> dict[str, Any]:
        from google.cloud.storage.retry import DEFAULT_RETRY  # noqa: PLC0415

        retry = DEFAULT_RETRY.with_delay(initial=0.25, maximum=8.0, multiplier=2.0).with_timeout(
            self._patience
        )
        return {"retry": retry, "timeout": min(30.0, self._patience)}

    @contextmanager
    def _errors(self, uri: str, missing: ServingError) -> Iterator[None]:
        from google.api_core import exceptions as api  # noqa: PLC0415
        from google.auth import exceptions as auth  # noqa: PLC0415

        try:
            yield
        except api.NotFound as error:
            raise missing from error
        except (api.Forbidden, api.Unauthorized) as error:
            raise PermissionDenied(
                f"Cloud Storage refuses {uri} to the server's account: {error.message} "
                "It needs roles/storage.objectViewer on the bucket, or objectUser to write there."
            ) from error
        except (auth.DefaultCredentialsError, auth.RefreshError) as error:
            raise PermissionDenied(
                f"{uri} needs Google credentials and the server has none that work: {error} Set "
                "GOOGLE_APPLICATION_CREDENTIALS to a service account's key file, or run "
                "`gcloud auth application-default login` as the server's user, and start the server again."
            ) from error
        except api.BadRequest as error:
            raise InvalidArgument(f"Cloud Storage does not accept {uri}: {error.message}") from error
        except (api.RetryError, api.TooManyRequests, api.ServerError) as error:
            cause = error.cause if isinstance(error, api.RetryError) else error
            response = getattr(cause, "response", None)
            said = cause if response is None else f"HTTP status {response.status_code}"
            raise Unavailable(
                f"Cloud Storage kept failing on {uri} for {self._patience:g} s: {said}",
                retry_after=self._patience,
            ) from error
        except api.GoogleAPIError as error:
            raise Internal(f"Cloud Storage failed on {uri}: {error}") from error


class _GcsFolder:
    def __init__(self, gcs: _Gcs, bucket: str, name: str) -> None:
        self._gcs = gcs
        self._bucket = bucket
        self._name = name
        self.uri = f"gs://{bucket}/{name}".rstrip("/")

    def files(self) -> list[_File]:
        # With its slash, or gs://b/model would also take in gs://b/model2.
        files = self._gcs.list(self._bucket, f"{self._name}/" if self._name else "")
        if files:
            return files
        missing = NotFound(
            f"There is no object below {self.uri}/. Check the name, or upload the model's files there first."
        )
        if not self._name:
            raise missing
        try:
            self._gcs.file(self._bucket, self._name)
        except NotFound:
            raise missing from None
        parent = self.uri.rpartition("/")[0]
        raise InvalidArgument(f"{self.uri} is a single object, not a folder. Give its folder: {parent}")

    def copy(self, file: _File, target: Path) -> None:
        self._gcs.download(file.origin, target)


def _no_bucket(bucket: str) -> NotFound:
    return NotFound(f"There is no bucket {bucket}. Check its name; the server does not make buckets.")


def _stored(blob: Any, prefix: str) -> _File:
    return _File(blob.name.removeprefix(prefix), blob.size, f"{blob.generation} {blob.crc32c}", blob)


class _Summed:
    """A file to write to that takes the CRC32C of what passes."""

    def __init__(self, file: IO[bytes], checksum: Any) -> None:
        self._file = file
        self._checksum = checksum

    def write(self, data: bytes) -> int:
        self._checksum.update(data)
        return self._file.write(data)

    @property
    def sum(self) -> str:
        """Base64 of the four bytes, as Cloud Storage writes it."""
        return b64encode(self._checksum.digest()).decode()


def _decompress(uri: str, path: Path) -> None:
    packed = path.with_name(f".{path.name}.gz")
    path.rename(packed)
    try:
        with gzip.open(packed) as source, path.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InvalidArgument(
            f"{uri} is marked `Content-Encoding: gzip`, but is not gzip: {error}"
        ) from error
    packed.unlink()


# ---- the cache ----


class _Cache:
    def __init__(self, root: Path, capacity: int) -> None:
        self._root = root
        self._capacity = capacity
        self._locks = root / ".locks"
        self._partial = root / ".partial"

    def fetch(
        self, digest: str, files: Sequence[_File], copy: Callable[[_File, Path], None], destination: Path
    ) -> None:
        """Link the entry `digest` into `destination`, after filling it with `copy` if it is not there yet."""
        self._locks.mkdir(parents=True, exist_ok=True)
        self._partial.mkdir(exist_ok=True)
        entry = self._root / digest
        self._sweep()
        with self._lock(digest):
            if not entry.is_dir():
                self._evict(sum(file.size for file in files))
                self._fill(entry, files, copy)
            now = time.time_ns()
            os.utime(entry, ns=(now, now))
            _link(entry, [file.name for file in files], destination)

    def _fill(self, entry: Path, files: Sequence[_File], copy: Callable[[_File, Path], None]) -> None:
        partial = self._partial / entry.name
        shutil.rmtree(partial, ignore_errors=True)
        _make_folders(partial, [file.name for file in files])

        def settle(file: _File) -> None:
            target = partial / file.name
            copy(file, target)
            # Read-only, because every version made from this entry shares the file.
            target.chmod(0o444)
            _flush(target)

        with ThreadPoolExecutor(_THREADS) as pool:
            copies = [pool.submit(settle, file) for file in files]
            try:
                for done in as_completed(copies):
                    done.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        partial.rename(entry)
        _flush(self._root)

    def _evict(self, needed: int) -> None:
        """Remove unused entries, least recently used first, until `needed` more bytes fit under the cap."""
        with self._lock(".evict"):
            # Nothing but our own entries: the folder may be one that holds other things too.
            entries = [path for path in self._root.iterdir() if _DIGEST.fullmatch(path.name)]
            sizes = {entry: sum(file.st_size for file in _statuses(entry)) for entry in entries}
            excess = sum(sizes.values()) + needed - self._capacity
            for entry in sorted(entries, key=lambda entry: entry.stat().st_mtime_ns):
                if excess <= 0:
                    return
                with self._lock(entry.name, wait=False) as held:
                    if held and all(file.st_nlink == 1 for file in _statuses(entry)):
                        self._discard(entry)
                        excess -= sizes[entry]

    def _discard(self, entry: Path) -> None:
        doomed = self._partial / entry.name
        shutil.rmtree(doomed, ignore_errors=True)
        entry.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)

    def _sweep(self) -> None:
        """Remove what processes left half-made when they died."""
        for partial in self._partial.iterdir():
            with self._lock(partial.name, wait=False) as held:
                if held:
                    shutil.rmtree(partial, ignore_errors=True)

    @contextmanager
    def _lock(self, name: str, *, wait: bool = True) -> Iterator[bool]:
        """Hold the lock `name`, or, without waiting, learn that somebody else does."""
        path = self._locks / name
        while True:
            with path.open("ab") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    yield False
                    return
                # A holder removes the file before it lets go, so that none pile up. What was locked may
                # thus be a file that nobody else can open any more.
                if _same(file, path):
                    try:
                        yield True
                    finally:
                        path.unlink(missing_ok=True)
                    return


def _same(file: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _statuses(entry: Path) -> list[os.stat_result]:
    return [path.stat() for path in entry.rglob("*") if path.is_file()]


def _make_folders(root: Path, names: Sequence[str]) -> None:
    for folder in {(root / name).parent for name in names}:
        folder.mkdir(parents=True, exist_ok=True)


def _link(entry: Path, names: Sequence[str], destination: Path) -> None:
    partial = destination.with_name(f".{destination.name}.part")
    shutil.rmtree(partial, ignore_errors=True)
    _make_folders(partial, names)
    for name in names:
        try:
            (partial / name).hardlink_to(entry / name)
        except OSError as error:
            if error.errno not in _UNLINKABLE:
                raise
            shutil.copy(entry / name, partial / name)
    partial.rename(destination)
    _flush(destination.parent)


def _flush(path: Path) -> None:
    """Have a file or a folder survive a power cut: the catalogue would go on naming it after one."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
