"""Where a URI points: a bucket of Cloud Storage, or a path of this machine."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from serving.errors import InvalidArgument


def parse_storage_uri(uri: str) -> tuple[str, str]:
    """(bucket, object name), or ("", absolute path) for a local URI; without a trailing slash."""
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
