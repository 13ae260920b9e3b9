"""Looks into the local folder of a version that is yet to be made, by a child process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from autoscaler.child_launcher import module_command, run_child
from serving.errors import Unavailable
from serving.resources import Version

_COMMAND = module_command("serving.runtimes.folder_check")
_TIMEOUT, _GRACE_SECONDS = 60.0, 1.0


class FileFindings(msgspec.Struct, frozen=True):
    """The answer of `serving.runtimes.folder_check`, whose module loads the libraries of models."""

    framework: str = ""
    file: str = ""
    message: str = ""
    suggestion: str = ""


async def find_files(
    version: Version, folder: str, environment: Mapping[str, str], *, may_look_above: bool
) -> FileFindings:
    """`may_look_above`: into the folder that it is in, to say what is near. Raises Unavailable."""
    asked = {
        "folder": folder,
        "framework": version.framework,
        "prediction_class": version.prediction_class,
        "may_look_above": may_look_above,
    }
    stdin = msgspec.json.encode(asked)
    try:
        async with (
            asyncio.timeout(_TIMEOUT),
            run_child(_COMMAND, environment=environment, stdin=stdin, grace_seconds=_GRACE_SECONDS) as child,
        ):
            return msgspec.json.decode(await child.output.read(), type=FileFindings)
    except TimeoutError:
        raise Unavailable(f"The folder could not be read within {_TIMEOUT:g} s. Try again.") from None
    except msgspec.DecodeError:
        raise Unavailable("The look into the folder ended without an answer. Try again.") from None
