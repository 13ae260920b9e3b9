"""`python -m serving.artifacts.write_check`: tries whether a folder of a bucket can be written to.

One WriteCheck comes in on stdin, one WriteFailure goes out on stdout. The gateway runs it as a process: it
loads no storage client itself.
"""

from __future__ import annotations

import os
import secrets
import sys

import msgspec

from serving.errors import ServingError, Unavailable

# Seconds for which Cloud Storage is asked again.
_RETRY_SECONDS = 20.0


class WriteCheck(msgspec.Struct, frozen=True):
    """The folder."""

    uri: str


class WriteFailure(msgspec.Struct, frozen=True):
    """Why it cannot be written to; "" if it can. `is_temporary`: it may be possible later."""

    message: str = ""
    is_temporary: bool = False


def try_write(uri: str) -> WriteFailure:
    """Write an empty file with a name of its own, and remove it."""
    from serving.artifacts.storage.file_store import FileStore  # noqa: PLC0415  the gateway imports this module

    store = FileStore(retry_seconds=_RETRY_SECONDS)
    name = f"{uri.rstrip('/')}/.pilotlight-{secrets.token_hex(8)}"
    try:
        store.write(name, b"")
        store.delete(name)
    except ServingError as error:
        return WriteFailure(error.message, isinstance(error, Unavailable))
    return WriteFailure()


def main() -> None:
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=WriteCheck)
    out = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    os.write(out, msgspec.json.encode(try_write(request.uri)) + b"\n")


if __name__ == "__main__":
    main()
