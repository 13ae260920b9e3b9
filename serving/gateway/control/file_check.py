"""Looks at the files of versions and jobs that are yet to be made, by child processes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from autoscaler.child_launcher import module_command, run_child
from serving.artifacts.child_environment import sanitize_environment
from serving.artifacts.input_check import InputCheck, MissingInput
from serving.artifacts.local_folder_policy import LocalFolderPolicy
from serving.config import ServeConfig
from serving.errors import Unavailable
from serving.resources import Version

__all__ = ["FileFindings", "InputChecker", "MissingInput", "inspect_folder"]

_COMMAND = module_command("serving.runtimes.folder_check")
_INPUT_COMMAND = module_command("serving.artifacts.input_check")
_TIMEOUT, _GRACE_SECONDS = 60.0, 1.0
# Somebody waits for it, and the job itself looks again.
_INPUT_TIMEOUT = 20.0


class FileFindings(msgspec.Struct, frozen=True):
    """The answer of `serving.runtimes.folder_check`, whose module loads the libraries of models."""

    framework: str = ""
    file: str = ""
    message: str = ""
    suggestion: str = ""


async def inspect_folder(
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


@dataclass(frozen=True, slots=True)
class InputChecker:
    """Looks whether the files of jobs exist; `environment` is that of the processes which do."""

    folders: LocalFolderPolicy
    environment: Mapping[str, str]

    @classmethod
    def from_config(cls, config: ServeConfig, environment: Mapping[str, str]) -> InputChecker:
        return cls(
            LocalFolderPolicy.from_setting(
                config.local_folders, config.state_dir, config.shared_versions_uri
            ),
            sanitize_environment(environment, config.node_environment, storage=True),
        )

    async def find_missing(self, patterns: Sequence[str], *, takes_stars: bool = True) -> MissingInput:
        """The first pattern that no file matches. What cannot be found out in time counts as there."""
        if not patterns:
            return MissingInput()
        stdin = msgspec.json.encode(InputCheck(tuple(patterns), self.folders, takes_stars))
        with contextlib.suppress(TimeoutError, msgspec.DecodeError):
            async with (
                asyncio.timeout(_INPUT_TIMEOUT),
                run_child(
                    _INPUT_COMMAND,
                    environment=self.environment,
                    stdin=stdin,
                    grace_seconds=_GRACE_SECONDS,
                ) as child,
            ):
                return msgspec.json.decode(await child.output.read(), type=MissingInput)
        return MissingInput()
