"""The objects of a bucket."""

from __future__ import annotations

import gzip
import io
import shutil
import uuid
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO

from serving.artifacts.storage.file_system import (
    MAX_LISTED,
    FileInfo,
    file_changed_error,
    unexpected_folder_error,
)
from serving.artifacts.storage.gcs import MAX_CONCURRENT_REQUESTS, GcsClient, bucket_not_found, emulator_host
from serving.errors import InvalidArgument, NotFound, Unavailable

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

# Bytes per request of a download or an upload; Cloud Storage asks for a multiple of 256 KiB.
_CHUNK = 8 << 20
_BUFFER = 128 << 10
_LISTED_FIELDS = "items(name,size,generation,contentEncoding,crc32c),nextPageToken"
_CONTENT_TYPE = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class GcsFileSystem:
    """One bucket; names are those of its objects."""

    gcs: GcsClient
    bucket: str

    def uri(self, name: str) -> str:
        """The gs:// URI."""
        return f"gs://{self.bucket}/{name}"

    def stat(self, name: str) -> FileInfo:
        """One object."""
        blob = self._get_blob(name) if name else None
        if blob is not None:
            return self._to_file_info(blob)
        if not name or self._list_blobs(f"{name}/", max_results=1):
            raise unexpected_folder_error(self.uri(name))
        raise self._not_found_error(name)

    def list_prefix(self, stem: str) -> Sequence[FileInfo]:
        """Objects of one level."""
        return self._list_files(stem, delimiter="/")

    def list(self, folder: str) -> Sequence[FileInfo]:
        """Every object below a prefix."""
        with suppress(NotFound):
            return self._list_files(f"{folder}/" if folder else "")
        return []

    def list_artifact(self, folder: str) -> Sequence[FileInfo]:
        """Every object below a prefix."""
        # With its slash, or gs://b/model would also take in gs://b/model2.
        if found := self._list_files(f"{folder}/" if folder else "", limit=MAX_LISTED):
            return found
        uri = self.uri(folder).rstrip("/")
        if folder and self._get_blob(folder) is not None:
            parent = uri.rpartition("/")[0]
            raise InvalidArgument(f"{uri} is a single object, not a folder. Give its folder: {parent}")
        raise NotFound(
            f"There is no object below {uri}/. Check the name, or upload the model's files there first."
        )

    def download(self, item: FileInfo, target: Path) -> None:
        """Download the generation that was found, and check its listed checksum."""
        import google_crc32c  # noqa: PLC0415

        changed = file_changed_error(item.uri, "copied")
        with self.gcs.translate_errors(item.uri, changed), target.open("wb") as file:
            # The client checks no download that it had to resume, so the sum is taken here. Raw: the sum
            # is that of the stored bytes, also of objects that are stored compressed.
            writer = _ChecksumWriter(file, google_crc32c.Checksum())  # type: ignore[no-untyped-call]
            blob = self._blob(self._name_of(item), int(item.version))
            blob.download_to_file(writer, raw_download=True, checksum=None, **self.gcs.call_options)
        if writer.base64_checksum != item.crc32c:
            raise Unavailable(
                f"{item.uri} arrived damaged: its CRC32C is {writer.base64_checksum}, not {item.crc32c}; "
                "try again."
            )
        if item.gzip:
            _decompress_file(item.uri, target)

    def open(self, item: FileInfo, start: int) -> BinaryIO:
        """The generation that was found, in chunks."""
        name = self._name_of(item)

        def fetch_range(first: int, end: int) -> bytes:
            return self._download_range(name, int(item.version), first, end)

        return io.BufferedReader(_ChunkedReader(fetch_range, start, item.size), _BUFFER)

    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        """A resumable upload, never finished when the block raises."""
        with self._translate_write_errors(name):
            options = {"content_type": _CONTENT_TYPE, "checksum": "crc32c", **self.gcs.call_options}
            writer = self._blob(name).open("wb", chunk_size=_CHUNK, **options)
            try:
                yield writer
                writer.close()
            except BaseException:
                # A writer that is thrown away while its buffer is open finishes the upload. Its `terminate`
                # leaves the buffer open when the network fails, and calls nothing off: it asks at an address
                # that names no upload. Cloud Storage forgets an unfinished one after a week.
                writer._buffer.close()
                raise

    def read(self, name: str) -> bytes:
        """The whole object."""
        self._require_name(name)
        with self.gcs.translate_errors(self.uri(name), self._not_found_error(name)):
            data: bytes = self._blob(name).download_as_bytes(raw_download=True, **self.gcs.call_options)
        return data

    def write(self, name: str, data: bytes) -> None:
        """Create or replace an object."""
        with self._translate_write_errors(name):
            self._blob(name).upload_from_string(data, content_type=_CONTENT_TYPE, **self.gcs.call_options)

    def create_if_absent(self, name: str, data: bytes) -> bool:
        """Create an object on the condition that there is none."""
        with self._translate_write_errors(name):
            from google.api_core.exceptions import PreconditionFailed  # noqa: PLC0415

            # Emulators support no preconditions.
            if emulator_host() and self._get_blob(name) is not None:
                return False
            blob = self._blob(name)
            blob.metadata = {"claim": uuid.uuid4().hex}
            try:
                blob.upload_from_string(
                    data, content_type=_CONTENT_TYPE, if_generation_match=0, **self.gcs.call_options
                )
            except PreconditionFailed:
                # It may be our own upload, repeated because the response was lost.
                there = self._get_blob(name)
                return there is not None and there.metadata == blob.metadata
            return True

    def move(self, name: str, target: str) -> None:
        """A copy within Cloud Storage, then the removal of what was copied."""
        self._require_name(name)
        self._require_name(target)
        source = self._get_blob(name)
        if source is None:
            raise self._not_found_error(name)
        if name == target:
            return
        copy = self._blob(target)
        copy.content_type, copy.content_encoding = source.content_type, source.content_encoding
        with self.gcs.translate_errors(self.uri(name), self._not_found_error(name)):
            token, _, _ = copy.rewrite(source, **self.gcs.call_options)
            while token:
                token, _, _ = copy.rewrite(source, token=token, **self.gcs.call_options)
        self._delete_blob(source)

    def delete(self, name: str) -> None:
        """Remove an object."""
        self._require_name(name)
        self._delete_blob(self._blob(name))

    def delete_partials(self, name: str) -> None:
        """Nothing: objects are there once they are complete."""

    def delete_folder(self, name: str) -> None:
        """Remove all objects below a prefix, the placeholders for folders too."""
        with suppress(NotFound), ThreadPoolExecutor(MAX_CONCURRENT_REQUESTS) as pool:
            for _ in pool.map(self._delete_blob, self._list_blobs(f"{name}/")):
                pass

    def _blob(self, name: str, generation: int | None = None) -> Any:
        return self.gcs.google_client.bucket(self.bucket).blob(name, generation=generation)

    def _get_blob(self, name: str, generation: int | None = None) -> Any | None:
        """What is known of an object, None when there is none."""
        with self.gcs.translate_errors(self.uri(name), self._not_found_error(name)):
            bucket = self.gcs.google_client.bucket(self.bucket)
            return bucket.get_blob(name, generation=generation, **self.gcs.call_options)

    def _list_blobs(self, prefix: str, **options: Any) -> Sequence[Any]:
        with self.gcs.translate_errors(self.uri(prefix), bucket_not_found(self.bucket)):
            options |= {"fields": _LISTED_FIELDS, **self.gcs.call_options}
            return [*self.gcs.google_client.list_blobs(self.bucket, prefix=prefix, **options)]

    def _list_files(self, prefix: str, *, limit: int | None = None, **options: Any) -> Sequence[FileInfo]:
        """Without folder placeholders, at most `limit`."""
        with self.gcs.translate_errors(self.uri(prefix), bucket_not_found(self.bucket)):
            options |= {"fields": _LISTED_FIELDS, **self.gcs.call_options}
            blobs = self.gcs.google_client.list_blobs(self.bucket, prefix=prefix, **options)
            files = (self._to_file_info(blob) for blob in blobs if not blob.name.endswith("/"))
            return list(islice(files, limit))

    def _to_file_info(self, blob: Any) -> FileInfo:
        is_packed = blob.content_encoding == "gzip"
        return FileInfo(self.uri(blob.name), blob.size, str(blob.generation), is_packed, blob.crc32c or "")

    def _name_of(self, item: FileInfo) -> str:
        return item.uri.removeprefix(self.uri(""))

    def _download_range(self, name: str, generation: int, first: int, end: int) -> bytes:
        """The bytes from `first` to before `end` of one generation of an object, as they are stored."""
        uri = self.uri(name)
        with self.gcs.translate_errors(uri, file_changed_error(uri)):
            # A blob made anew: a download overwrites the generation of its blob with what was answered.
            blob = self._blob(name, generation)
            data: bytes = blob.download_as_bytes(
                start=first, end=end - 1, raw_download=True, checksum=None, **self.gcs.call_options
            )
        answered = blob.generation
        if answered is None:
            # An emulator does not say which generation it has sent, and may not have looked at ours.
            found = self._get_blob(name, generation)
            answered = found and found.generation
        if answered != generation or len(data) != end - first:
            raise file_changed_error(uri)
        return data

    def _delete_blob(self, blob: Any) -> None:
        uri = self.uri(blob.name)
        with suppress(NotFound), self.gcs.translate_errors(uri, self._not_found_error(blob.name)):
            blob.delete(**self.gcs.call_options)

    def _not_found_error(self, name: str) -> NotFound:
        return NotFound(f"There is no object {self.uri(name)}. Check the name, or upload it first.")

    def _require_name(self, name: str) -> None:
        if not name:
            raise InvalidArgument(f"{self.uri(name)} is a bucket; expected a single object.")

    @contextmanager
    def _translate_write_errors(self, name: str) -> Iterator[None]:
        if not name:
            raise InvalidArgument(f"{self.uri(name)} is a bucket; expected an object to write.")
        with self.gcs.translate_errors(self.uri(name), bucket_not_found(self.bucket)):
            yield


class _ChunkedReader(io.RawIOBase):
    """The bytes from `start` to before `end` of what `fetch(first, end)` gives, one chunk in memory."""

    def __init__(self, fetch: Callable[[int, int], bytes], start: int, end: int) -> None:
        self._fetch = fetch
        self._position = start
        self._end = end
        self._chunk = memoryview(b"")

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill the buffer with what is left of the chunk, or with the begin of the next."""
        if not self._chunk and self._position < self._end:
            # Released before the next one is fetched, so that there are never two.
            self._chunk = memoryview(b"")
            end = min(self._position + _CHUNK, self._end)
            self._chunk = memoryview(self._fetch(self._position, end))
            self._position = end
        target = memoryview(buffer)
        count = min(len(target), len(self._chunk))
        target[:count] = self._chunk[:count]
        self._chunk = self._chunk[count:]
        return count


class _ChecksumWriter:
    """Writes to a file and computes the CRC32C."""

    def __init__(self, file: IO[bytes], checksum: Any) -> None:
        self._file = file
        self._checksum = checksum

    def write(self, data: bytes) -> int:
        self._checksum.update(data)
        return self._file.write(data)

    @property
    def base64_checksum(self) -> str:
        """Base64 of the four bytes, as Cloud Storage writes it."""
        return b64encode(self._checksum.digest()).decode()


def _decompress_file(uri: str, path: Path) -> None:
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
