"""Tries whether a training job may write into its `jobDir`."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

import msgspec

from autoscaler.child_launcher import module_command, run_child
from serving.artifacts.write_check import WriteCheck, WriteFailure
from serving.errors import InvalidArgument, ServingError, Unavailable, field_error
from serving.gateway.thread_pool import ThreadPool

_FIELD = "training_input.job_dir"
_COMMAND = module_command("serving.artifacts.write_check")
_TIMEOUT, _GRACE_SECONDS = 40.0, 1.0


async def check_job_dir(uri: str, environment: Mapping[str, str], threads: ThreadPool) -> None:
    """Write a small file there and remove it. Raises InvalidArgument, or Unavailable, with the field.

    Buckets are tried by a child process: this one loads no storage client. A local folder is made.
    """
    try:
        if uri.startswith("gs://"):
            await _check_bucket(uri, environment)
        else:
            await threads.run(_check_folder, Path(unquote(uri.removeprefix("file://"))))
    except Unavailable as error:
        raise field_error(Unavailable, _FIELD, error.message) from error
    except ServingError as error:
        raise field_error(InvalidArgument, _FIELD, f"{uri} cannot be used. {error.message}") from error


def _check_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InvalidArgument(f"The server may not write there: {error.strerror}.") from error


async def _check_bucket(uri: str, environment: Mapping[str, str]) -> None:
    stdin = msgspec.json.encode(WriteCheck(uri))
    try:
        async with (
            asyncio.timeout(_TIMEOUT),
            run_child(_COMMAND, environment=environment, stdin=stdin, grace_seconds=_GRACE_SECONDS) as child,
        ):
            line = await child.output.readline()
    except TimeoutError:
        raise Unavailable(f"Cloud Storage did not answer within {_TIMEOUT:g} s. Try again.") from None
    try:
        failure = msgspec.json.decode(line, type=WriteFailure)
    except msgspec.DecodeError:
        raise Unavailable("The check of the folder ended without an answer. Try again.") from None
    if failure.message:
        raise Unavailable(failure.message) if failure.is_temporary else InvalidArgument(failure.message)
