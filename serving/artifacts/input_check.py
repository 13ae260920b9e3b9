"""`python -m serving.artifacts.input_check`: says which files of a job that is yet to be made do not exist.

One InputCheck comes in on stdin, one MissingInput goes out on stdout. The gateway runs it as a process: it
loads no storage client itself.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from serving.artifacts.local_folder_policy import LocalFolderPolicy
from serving.errors import ServingError, Unavailable

if TYPE_CHECKING:
    from serving.artifacts.storage import FileStore

# Seconds for which Cloud Storage is asked again: somebody waits for the answer.
_RETRY_SECONDS = 3.0
_MOST_NAMED = 5


class InputCheck(msgspec.Struct, frozen=True):
    """Files, and with `takes_stars` `FOLDER/*` or `PREFIX*` too; `folders` are those that callers may use."""

    patterns: tuple[str, ...]
    folders: LocalFolderPolicy = LocalFolderPolicy()
    takes_stars: bool = True


class MissingInput(msgspec.Struct, frozen=True):
    """A pattern that no file matches, and why; `suggestion` is one like it that matches some.

    All are "" where each pattern has a file. Storage that does not answer is no reason: a job tries again.
    """

    pattern: str = ""
    message: str = ""
    suggestion: str = ""


def find_missing_input(check: InputCheck) -> MissingInput:
    from serving.artifacts.storage import FileStore  # noqa: PLC0415  the gateway imports this module

    files = FileStore(retry_seconds=_RETRY_SECONDS, folders=check.folders)
    for pattern in check.patterns:
        try:
            files.glob(pattern)
        except Unavailable:
            continue
        except ServingError as error:
            likely = [f"{pattern.rstrip('/*')}/*"] if check.takes_stars else []
            alike = next(
                filter(partial(_matches_files, files), chain(likely, _iter_alike(files, pattern))), ""
            )
            meant = f" Do you mean {alike}?" if alike else _describe_folder_above(files, pattern)
            return MissingInput(pattern, f"{error.message}{meant}", alike)
    return MissingInput()


def _matches_files(files: FileStore, pattern: str) -> bool:
    with contextlib.suppress(ServingError):
        return bool(files.glob(pattern))
    return False


def _iter_alike(files: FileStore, pattern: str) -> Iterator[str]:
    """Paths in which a name that is not there is replaced by one like it.

    In a bucket that is the last name only: others cost a listing for each.
    """
    above, _, last = pattern.rpartition("/")
    rest = ""
    while above:
        if names := _list_names(files, above):
            typed = last.removesuffix("*")
            found = difflib.get_close_matches(typed, names)
            yield from (f"{above}/{name}{rest}" for name in found)
            return
        if pattern.startswith("gs://"):
            return
        rest = f"/{last}{rest}"
        above, _, last = above.rpartition("/")


def _describe_folder_above(files: FileStore, pattern: str) -> str:
    above = pattern.rpartition("/")[0]
    names = sorted(_list_names(files, above)) if above else []
    if not names:
        return ""
    more = f" and {len(names) - _MOST_NAMED:,} more" if len(names) > _MOST_NAMED else ""
    return f" {above} holds {', '.join(names[:_MOST_NAMED])}{more}."


def _list_names(files: FileStore, folder: str) -> Sequence[str]:
    """What is in a folder that callers may use; of a bucket the objects alone, without folders."""
    with contextlib.suppress(ServingError, OSError):
        if folder.startswith("gs://"):
            return [item.uri.rpartition("/")[2] for item in files.glob(f"{folder}/*")]
        _, path = files.resolve(folder)
        files.folders.check_path(path)
        return [one.name for one in Path(path).iterdir() if not one.name.startswith(".")]
    return ()


def main() -> None:
    check = msgspec.json.decode(sys.stdin.buffer.read(), type=InputCheck)
    out = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    os.write(out, msgspec.json.encode(find_missing_input(check)) + b"\n")


if __name__ == "__main__":
    main()
