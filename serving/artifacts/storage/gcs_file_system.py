"""Single objects of Cloud Storage."""

from __future__ import annotations

import io
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from serving.artifacts.storage.file_system import FileInfo, file_changed_error
from serving.artifacts.storage.gcs import MAX_CONCURRENT_REQUESTS, GcsClient, bucket_not_found, emulator_host
from serving.errors import InvalidArgument, NotFound

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

# Bytes per request of a download or an upload; Cloud Storage asks for a multiple of 256 KiB.
_CHUNK = 8 << 20
_BUFFER = 128 << 10
_LISTED_FIELDS = "items(name,size,generation,contentEncoding),nextPageToken"
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
        uri = self.uri(name)
        if self._list_blobs(f"{name}/" if name else "", max_results=1):
            raise InvalidArgument(f"{uri} is a folder; write {uri.rstrip('/')}/* for the files in it.")
        raise self._not_found_error(name)

    def list_prefix(self, stem: str) -> list[FileInfo]:
        """Objects of one level."""
        return [self._to_file_info(blob) for blob in self._list_blobs(stem, delimiter="/") if _is_file(blob)]

    def list(self, folder: str) -> list[FileInfo]:
        """Every object below a prefix."""
        with suppress(NotFound):
            blobs = self._list_blobs(f"{folder}/" if folder else "")
            return [self._to_file_info(blob) for blob in blobs if _is_file(blob)]
        return []

    def open(self, name: str, item: FileInfo, start: int) -> BinaryIO:
        """The generation that was found, in chunks."""

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

    def _to_file_info(self, blob: Any) -> FileInfo:
        gzip = blob.content_encoding == "gzip"
        return FileInfo(self.uri(blob.name), blob.size, str(blob.generation), gzip)

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


def _is_file(blob: Any) -> bool:
    return not blob.name.endswith("/")


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
