"""The predictor process: a model computed by another interpreter than ours.

`program.py` is what that interpreter runs; see `serving.runtimes.external` for the node's side.
"""

from __future__ import annotations

from pathlib import Path

PROGRAM = Path(__file__).with_name("program.py")


def predictor_command(interpreter: str, *arguments: str) -> tuple[str, ...]:
    """Runs the program: without the PYTHON* variables of this process, and without the user's packages."""
    return (interpreter, "-E", "-s", "-u", str(PROGRAM), *arguments)


def pilot_command(interpreter: str) -> tuple[str, ...]:
    """Starts a pilot of an interpreter; its settings follow as JSON."""
    return predictor_command(interpreter, "pilot")
