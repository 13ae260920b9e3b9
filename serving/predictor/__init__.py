"""The predictor process: a model computed by another interpreter than ours.

`program.py` is what that interpreter runs; see `serving.runtimes.external` for the node's side.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from serving.errors import LoadFailed

_PROBE_SECONDS = 60
PROGRAM = Path(__file__).with_name("program.py")


def command(interpreter: str, *arguments: str) -> tuple[str, ...]:
    """Runs the program: without the PYTHON* variables of this process, and without the user's packages."""
    return (interpreter, "-E", "-s", str(PROGRAM), *arguments)


def pilot_command(interpreter: str) -> tuple[str, ...]:
    """Starts a pilot of an interpreter; its settings follow as JSON."""
    return command(interpreter, "pilot")


def probe(interpreter: str) -> dict[str, str]:
    """The versions of Python and of the libraries that an interpreter has. Raises LoadFailed."""
    try:
        done = subprocess.run(
            command(interpreter, "versions"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LoadFailed(f"Cannot run {interpreter}: {error}") from error
    if done.returncode:
        raise LoadFailed(
            f"{interpreter} does not work: {done.stderr.decode(errors='replace').strip()[-500:]}"
        )
    found: dict[str, str] = json.loads(done.stdout)
    return found
