"""Finds what can be deployed below the folder of a job.

`python -m training.deployable_models` gets a ModelSearchRequest on stdin, and writes one ModelSearchResult:
the server itself reads no storage.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import PurePosixPath

import msgspec

from serving import frameworks
from serving.artifacts.local_folder_policy import LocalFolderPolicy
from serving.artifacts.storage import FileStore
from serving.errors import ServingError

_FILE_SCHEME = "file://"


class ModelSearchRequest(msgspec.Struct, frozen=True):
    """`folder` is a URI or a path; the others are those of `LocalFolderPolicy`."""

    folder: str
    allowed_folders: tuple[str, ...] = ()
    refused_folders: tuple[str, ...] = ()


class ModelSearchResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The model folders, as URIs of the kind of the request's, or the code and message of an error."""

    models: tuple[str, ...] = ()
    status: str = ""
    message: str = ""


def find_deployable_models(folder: str, files: FileStore) -> list[str]:
    """The model folders in a folder, or itself, in order; of exports named by their time only the newest.

    Raises ServingError.
    """
    root = folder.removeprefix(_FILE_SCHEME).rstrip("/")
    paths = (item.uri.removeprefix(f"{root}/") for item in files.list(root))
    found = choose_model_folders(filter(_is_utf8, paths))
    return [root if path == PurePosixPath() else f"{root}/{path}" for path in found]


def choose_model_folders(paths: Iterable[str]) -> list[PurePosixPath]:
    """The same by the paths of all files below the folder."""
    names: dict[PurePosixPath, list[str]] = {}
    for path in map(PurePosixPath, paths):
        names.setdefault(path.parent, []).append(path.name)
    models = {folder for folder, inside in names.items() if frameworks.find_by_files(inside)}
    # A model may have other models among its own files.
    outermost = {folder for folder in models if not models.intersection(folder.parents)}
    exports = {folder for folder in outermost if folder.name.isdecimal()}
    newest: dict[PurePosixPath, PurePosixPath] = {}
    for folder in exports:
        newest[folder.parent] = max(folder, newest.get(folder.parent, folder), key=_parse_export_time)
    return sorted((outermost - exports).union(newest.values()))


def _is_utf8(path: str) -> bool:
    """Whether it can be told: names of files may be any bytes."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _parse_export_time(export: PurePosixPath) -> int:
    return int(export.name)


def main() -> None:
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=ModelSearchRequest)
    folders = LocalFolderPolicy(request.allowed_folders, request.refused_folders)
    try:
        result = ModelSearchResult(tuple(find_deployable_models(request.folder, FileStore(folders=folders))))
    except ServingError as error:
        result = ModelSearchResult(status=error.status, message=error.message)
    sys.stdout.buffer.write(msgspec.json.encode(result))


if __name__ == "__main__":
    main()
