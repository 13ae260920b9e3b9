"""`python -m serving.runtimes.folder_check`: says what a model folder holds, before a version is made of it.

A process of its own, since files of others are looked into.
"""

from __future__ import annotations

import difflib
import sys
from pathlib import Path

import msgspec

from serving.errors import ModelError, ServingError
from serving.frameworks import load_frameworks
from serving.runtimes.framework_detection import (
    describe_entries,
    detect_framework,
    find_folder_below,
    find_model_file,
    list_model_files,
)


class FolderCheckRequest(msgspec.Struct, frozen=True):
    """`framework` is "" where the files decide; `may_look_above` is for the folder that it is in."""

    folder: str
    framework: str = ""
    prediction_class: str = ""
    may_look_above: bool = False


class FolderCheckResult(msgspec.Struct, frozen=True):
    """`framework` is "" where the folder cannot be deployed, `message` says why; `file` is the model's.

    `suggestion` is a folder near it that holds a model.
    """

    framework: str = ""
    file: str = ""
    message: str = ""
    suggestion: str = ""


def check_folder(request: FolderCheckRequest) -> FolderCheckResult:
    folder = Path(request.folder)
    if not folder.is_dir():
        return FolderCheckResult(message=_describe_missing(folder, request))
    try:
        return _find_model(folder, request)
    except ServingError as error:
        reason = error.detail if isinstance(error, ModelError) else error.message
        return _build_refusal(folder, request, f"Looked in {folder}. {reason}")
    except OSError as error:
        return FolderCheckResult(message=f"The folder {folder} cannot be read: {error.strerror}.")


def _find_model(folder: Path, request: FolderCheckRequest) -> FolderCheckResult:
    """Raises LoadFailed, OSError."""
    if not request.prediction_class:
        known = [one for one in load_frameworks().values() if one.name == request.framework]
        framework = known[0] if known else detect_framework(folder, "")
        return FolderCheckResult(framework.name, find_model_file(folder, framework).name)
    if not any(folder.iterdir()):
        return FolderCheckResult(message=f"The folder {folder} is empty. Put the model's files there first.")
    return FolderCheckResult(detect_framework(folder, request.prediction_class).name)


def _build_refusal(folder: Path, request: FolderCheckRequest, message: str) -> FolderCheckResult:
    """With a folder near it that holds a model."""
    if request.may_look_above and (above := list_model_files(folder.parent)):
        return FolderCheckResult(
            message=f"{message} The folder above, {folder.parent}, holds {above[0]}: deploy that one.",
            suggestion=str(folder.parent),
        )
    below = None if list_model_files(folder) else find_folder_below(folder)
    return FolderCheckResult(message=message, suggestion="" if below is None else str(below))


def _describe_missing(folder: Path, request: FolderCheckRequest) -> str:
    kind = "It is a file" if folder.exists() else "There is nothing at that path on the server's machine"
    above = folder.parent
    if not request.may_look_above or not above.is_dir():
        return f"{folder} is no folder. {kind}."
    alike = difflib.get_close_matches(folder.name, [one.name for one in above.iterdir() if one.is_dir()])
    if alike:
        return f"{folder} is no folder. {kind}. Do you mean {above / alike[0]}?"
    return f"{folder} is no folder. {kind}; {above} holds {describe_entries(above) or 'nothing'}."


if __name__ == "__main__":
    sent = msgspec.json.decode(sys.stdin.buffer.read(), type=FolderCheckRequest)
    sys.stdout.buffer.write(msgspec.json.encode(check_folder(sent)))
