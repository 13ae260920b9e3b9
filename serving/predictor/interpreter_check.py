"""What an interpreter has, and whether it runs what computes models."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

import msgspec

from serving.config import FORK_ENVIRONMENT, FRAMEWORK_ENVIRONMENT, environment_without_settings
from serving.errors import LoadFailed
from serving.predictor import predictor_command

_CHECK_SECONDS = 120
_LAST_LINES = 3


class InterpreterInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What an interpreter has: its version, those of its libraries, and what is wrong with the `broken` ones.

    `threads` are those that it has once the libraries are imported; with more than one it cannot be forked.
    """

    python: str
    versions: Mapping[str, str]
    broken: Mapping[str, str]
    threads: int

    @property
    def description(self) -> str:
        """As people read it."""
        listed = ", ".join(f"{name} {version}" for name, version in sorted(self.versions.items()))
        return f"Python {self.python} with {listed or 'no library of models'}"


def check_interpreter(interpreter: str) -> InterpreterInfo:
    """Have an interpreter import the libraries it has. Raises LoadFailed if it does not work."""
    try:
        done = subprocess.run(
            predictor_command(interpreter, "check"),
            env={**environment_without_settings(), **FRAMEWORK_ENVIRONMENT, **FORK_ENVIRONMENT},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_CHECK_SECONDS,
            check=False,
        )
    except OSError as error:
        raise LoadFailed(f"Cannot run {interpreter}: {error.strerror or error}.") from error
    except subprocess.TimeoutExpired as error:
        raise LoadFailed(f"{interpreter} took over {_CHECK_SECONDS} s to import its libraries.") from error
    try:
        return msgspec.json.decode(done.stdout.strip().rpartition(b"\n")[2], type=InterpreterInfo)
    except msgspec.DecodeError as error:
        said = " ".join(done.stderr.decode(errors="replace").strip().splitlines()[-_LAST_LINES:])
        raise LoadFailed(
            f"{interpreter} does not run what computes models (exit code {done.returncode}). It must be "
            f"Python 3.6 or later. It says: {said or 'nothing'}"
        ) from error
