"""`pilotlight state copy`: moves the state of a stopped server between its folder and a database."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from serving.cli.console import print_note
from serving.errors import FailedPrecondition

# Imports of the server's parts stand inside the function: they take longer than most commands.


def copy_state(
    source: Annotated[
        str, typer.Argument(metavar="FROM", help="A state folder, or postgresql://USER@HOST/DATABASE.")
    ],
    target: Annotated[str, typer.Argument(metavar="TO", help="A database, or a state folder.")],
) -> None:
    """Copy the state from a state folder into a PostgreSQL database, or back.

    Models, versions, operations, jobs, policies, studies and tokens are copied; files of versions, logs and
    caches stay in the folder. No server may run. Afterwards the folder belongs to the copy: start the server
    with --state, or without it after the way back.

    A password is better in ~/.pgpass or PGPASSWORD than on the command line, which others see.

    Example: pilotlight state copy ~/pilotlight postgresql://pilotlight@db.example.com/pilotlight

    Example: pilotlight state copy postgresql://pilotlight@db.example.com/pilotlight ~/pilotlight
    """
    from serving.cli.health.state import find_server_pid  # noqa: PLC0415
    from serving.gateway.state.shared import state_copy  # noqa: PLC0415
    from serving.gateway.state.shared.database import is_database_address  # noqa: PLC0415

    places = [
        place if is_database_address(place) else str(Path(place).expanduser().absolute())
        for place in (source, target)
    ]
    for place in places:
        if not is_database_address(place) and (pid := find_server_pid(Path(place))) is not None:
            raise FailedPrecondition(f"A server (pid {pid or 'unknown'}) uses {place}: stop it first.")
    counts = state_copy.copy_state(*places)
    copied = ", ".join(f"{count} {table.replace('_', ' ')}" for table, count in counts.items())
    print_note(f"Copied {copied}.")
