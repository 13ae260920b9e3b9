"""Cloud Storage: the client with retries and errors, and folders to fetch from."""

from __future__ import annotations

import gzip
import os
import shutil
import zlib
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import IO, Any

from serving.artifacts.storage.source_folder import MAX_LISTED, SourceFile, SourceFolder
from serving.errors import Internal, InvalidArgument, NotFound, PermissionDenied, ServingError, Unavailable

# Requests at the same time: below the ten connections that the storage client's HTTP pool keeps.
MAX_CONCURRENT_REQUESTS = 8


def emulator_host() -> str:
    """Address of a Cloud Storage emulator as `http://host:port`, "" for the real service.

    google-cloud-storage itself defines and reads this variable; our own settings are in `config`.
    """
    host = os.environ.get("STORAGE_EMULATOR_HOST", "")
    return host if not host or "://" in host else f"http://{host}"


class GcsClient:
    """Cloud Storage with retries; raises ServingErrors."""

    def __init__(self, retry_seconds: float) -> None:
        self._retry_seconds = retry_seconds

    def __getstate__(self) -> dict[str, float]:
        # A copy in another process makes a client of its own.
        return {"_retry_seconds": self._retry_seconds}

    def list_objects(self, bucket: str, prefix: str) -> list[SourceFile]:
        """At most MAX_LISTED objects below `prefix`, without folder placeholders."""
        with self.translate_errors(f"gs://{bucket}/{prefix}", bucket_not_found(bucket)):
            blobs = self.google_client.list_blobs(bucket, prefix=prefix, **self.call_options)
            found = (_to_source_file(blob, prefix) for blob in blobs if not blob.name.endswith("/"))
            return list(islice(found, MAX_LISTED))

    def find_object(self, bucket: str, name: str) -> tuple[SourceFolder, SourceFile]:
        """One object, with the folder that holds it."""
        uri = f"gs://{bucket}/{name}"
        missing = NotFound(f"There is no object {uri}. Check the name, or upload it first.")
        if not name:
            raise InvalidArgument(f"{uri} is a bucket; expected a single object.")
        with self.translate_errors(uri, missing):
            blob = self.google_client.bucket(bucket).get_blob(name, **self.call_options)
        if blob is None:
            raise missing
        parent, slash, _ = name.rpartition("/")
        return GcsSourceFolder(self, bucket, parent), _to_source_file(blob, parent + slash)

    def download_object(self, blob: Any, target: Path) -> None:
        """Write the listed generation to `target`, and check its listed checksum."""
        import google_crc32c  # noqa: PLC0415

        uri = f"gs://{blob.bucket.name}/{blob.name}"
        changed = Unavailable(f"{uri} was replaced or removed while it was being copied; try again.")
        with self.translate_errors(uri, changed), target.open("wb") as file:
            # The client checks no download that it had to resume, so the sum is taken here. Raw: the sum
            # is that of the stored bytes, also of objects that are stored compressed.
            writer = _ChecksumWriter(file, google_crc32c.Checksum())  # type: ignore[no-untyped-call]
            # A blob made anew: the download link of a listed one names the host it was uploaded through,
            # which for an emulator may be another than ours.
            object_ = blob.bucket.blob(blob.name, generation=blob.generation)
            object_.download_to_file(writer, raw_download=True, checksum=None, **self.call_options)
        if writer.base64_checksum != blob.crc32c:
            raise Unavailable(
                f"{uri} arrived damaged: its CRC32C is {writer.base64_checksum}, not {blob.crc32c}; "
                "try again."
            )
        if blob.content_encoding == "gzip":
            _decompress_file(uri, target)

    @cached_property
    def google_client(self) -> Any:
        """Google's client; threads may share it, processes may not."""
        from google.auth.credentials import AnonymousCredentials  # noqa: PLC0415
        from google.cloud.storage import Client  # noqa: PLC0415

        # No project is needed to read objects, and looking for one asks the metadata server for some 20 s.
        host = emulator_host()
        if not host:
            return Client(project=None)
        anonymous = AnonymousCredentials()  # type: ignore[no-untyped-call]
        return Client(project=None, credentials=anonymous, client_options={"api_endpoint": host})

    @cached_property
    def call_options(self) -> dict[str, Any]:
        """Arguments of every call: retries and timeout."""
        from google.cloud.storage.retry import DEFAULT_RETRY  # noqa: PLC0415

        retry = DEFAULT_RETRY.with_delay(initial=0.25, maximum=8.0, multiplier=2.0).with_timeout(
            self._retry_seconds
        )
        return {"retry": retry, "timeout": min(30.0, self._retry_seconds)}

    @contextmanager
    def translate_errors(self, uri: str, missing: ServingError) -> Iterator[None]:
        """Raise the client's errors as ServingErrors; `missing` is raised for a 404."""
        from google.api_core import exceptions as api  # noqa: PLC0415
        from google.auth import exceptions as auth  # noqa: PLC0415
        from google.cloud.storage.exceptions import DataCorruption  # noqa: PLC0415

        try:
            with _translate_upload_errors():
                yield
        except api.NotFound as error:
            raise missing from error
        except (api.Forbidden, api.Unauthorized) as error:
            raise PermissionDenied(
                f"Cloud Storage refuses {uri} to the server's account: {error.message.rstrip('. ')}. "
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
                f"Cloud Storage kept failing on {uri} for {self._retry_seconds:g} s: {said}",
                retry_after=self._retry_seconds,
            ) from error
        except DataCorruption as error:
            raise Unavailable(f"{uri} arrived damaged: {error} Try again.") from error
        except api.GoogleAPIError as error:
            raise Internal(f"Cloud Storage failed on {uri}: {error}") from error


@contextmanager
def _translate_upload_errors() -> Iterator[None]:
    """Raise errors of a streamed upload as the client's other calls raise them."""
    from google.api_core.exceptions import from_http_response  # noqa: PLC0415
    from google.cloud.storage.exceptions import InvalidResponse  # noqa: PLC0415

    try:
        yield
    except InvalidResponse as error:
        raise from_http_response(error.response) from error  # type: ignore[no-untyped-call]


class GcsSourceFolder:
    """The objects below a prefix of a bucket."""

    def __init__(self, gcs: GcsClient, bucket: str, name: str) -> None:
        self._gcs = gcs
        self._bucket = bucket
        self._name = name
        self.uri = f"gs://{bucket}/{name}".rstrip("/")

    def list_files(self) -> list[SourceFile]:
        """Every object below it, at most MAX_LISTED. Raises if there are none."""
        # With its slash, or gs://b/model would also take in gs://b/model2.
        files = self._gcs.list_objects(self._bucket, f"{self._name}/" if self._name else "")
        if files:
            return files
        missing = NotFound(
            f"There is no object below {self.uri}/. Check the name, or upload the model's files there first."
        )
        if not self._name:
            raise missing
        try:
            self._gcs.find_object(self._bucket, self._name)
        except NotFound:
            raise missing from None
        parent = self.uri.rpartition("/")[0]
        raise InvalidArgument(f"{self.uri} is a single object, not a folder. Give its folder: {parent}")

    def copy_file(self, file: SourceFile, target: Path) -> None:
        """Download the listed generation."""
        self._gcs.download_object(file.origin, target)


def bucket_not_found(bucket: str) -> NotFound:
    return NotFound(f"There is no bucket {bucket}. Check its name; the server does not make buckets.")


def _to_source_file(blob: Any, prefix: str) -> SourceFile:
    return SourceFile(blob.name.removeprefix(prefix), blob.size, f"{blob.generation} {blob.crc32c}", blob)


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
