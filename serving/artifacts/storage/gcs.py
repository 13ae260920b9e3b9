"""The client of Cloud Storage, with retries and errors of ours."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

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


def bucket_not_found(bucket: str) -> NotFound:
    return NotFound(f"There is no bucket {bucket}. Check its name; the server does not make buckets.")
