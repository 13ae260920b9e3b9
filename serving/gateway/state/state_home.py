"""Where the state is that the files of a state folder belong to: in its own `state.db`, or in a database.

A server removes files of versions and jobs that its state does not know. So it must not start on another
state than the one that the files were made for.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from serving.errors import FailedPrecondition

STATE_FILE = "state.db"
_HOME_FILE = "state-database"


class DatabaseHome(msgspec.Struct, frozen=True):
    """The database that has the state of a folder; `address` is as it may be shown."""

    id: str
    address: str


def check_home(folder: Path, database: DatabaseHome | None) -> None:
    """Raises FailedPrecondition unless the files of a folder belong to the state in this database or to none.

    Without a database: unless they belong to the folder's own state file.
    """
    home = read_home(folder)
    if database is None and home is not None:
        raise FailedPrecondition(
            f"The state of {folder} is in the database {home.address}: name it (--state, PILOTLIGHT_STATE), "
            "copy it back (`pilotlight state copy`), or choose another --state-dir."
        )
    if database is None or (home is not None and home.id == database.id):
        return
    if home is not None:
        raise FailedPrecondition(
            f"The files in {folder} belong to the state in the database {home.address}, not to that in "
            f"{database.address}. Choose another --state-dir, or copy the state (`pilotlight state copy`)."
        )
    if has_state_file(folder):
        raise FailedPrecondition(
            f"{folder} has a state of its own, {STATE_FILE}. Copy it into the database first: `pilotlight "
            f"state copy {folder} {database.address}`. Or choose another --state-dir."
        )


def read_home(folder: Path) -> DatabaseHome | None:
    """None for a folder whose state is in its own file. Raises FailedPrecondition for a damaged entry."""
    file = folder / _HOME_FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=DatabaseHome)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise FailedPrecondition(
            f"{file}, which names the database with the state of this folder, cannot be read: {error}."
        ) from error


def write_home(folder: Path, database: DatabaseHome | None) -> None:
    """Have the files of a folder belong to the state in this database; None: in its own file."""
    file = folder / _HOME_FILE
    if database is None:
        file.unlink(missing_ok=True)
        return
    part = file.with_name(f"{_HOME_FILE}.part")
    part.write_bytes(msgspec.json.encode(database))
    part.replace(file)


def has_state_file(folder: Path) -> bool:
    file = folder / STATE_FILE
    return file.exists() and file.stat().st_size > 0
