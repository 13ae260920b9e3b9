"""Calls to the interfaces that engines have for people and programs: small answers, soon."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from typing import IO, Any

_ANSWER_WITHIN = 5.0
_MOST_ERROR_CHARACTERS = 1000


class HttpStatusError(OSError):
    """An answer that is an error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"HTTP status {status}: {text}")
        self.status = status


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is the answer: web UIs send people to a page afterwards."""

    def http_error_302(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
    ) -> IO[bytes]:
        return fp

    http_error_303 = http_error_302


_opener = urllib.request.build_opener(_NoRedirects)


def normalize_url(address: str) -> str:
    """The URL of HOST:PORT or of a URL, without a slash at its end."""
    return (address if "://" in address else f"http://{address}").rstrip("/")


def send_request(method: str, url: str, body: bytes | None = None) -> bytes:
    """The body of the answer. Raises HttpStatusError for an error, OSError if there is no answer."""
    request = urllib.request.Request(url, body, method=method)  # noqa: S310  the operator's
    try:
        with _opener.open(request, timeout=_ANSWER_WITHIN) as answer:
            found: bytes = answer.read()
            return found
    except urllib.error.HTTPError as error:
        with error:
            text = error.read(_MOST_ERROR_CHARACTERS).decode(errors="replace")
        raise HttpStatusError(error.code, text) from error
    except urllib.error.URLError as error:
        raise OSError(error.reason) from error
    except http.client.HTTPException as error:
        raise OSError(f"it does not speak HTTP: {error!r}") from error


def fetch_json(method: str, url: str) -> Any:
    """The JSON of the answer, {} for an empty one. Raises as `send_request`, OSError for what is no JSON."""
    try:
        return json.loads(send_request(method, url) or b"{}")
    except ValueError as error:
        raise OSError(f"it answers no JSON: {error}") from error
