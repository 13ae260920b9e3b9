"""`python -m serving.runtimes.folder_check`: says what a model folder holds, before a version is made of it.

A process of its own, since files of others are looked into.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from serving.errors import ServingError
from serving.frameworks import load_frameworks
from serving.runtimes.framework_detection import detect_framework, find_model_file


class FolderCheckRequest(msgspec.Struct, frozen=True):
    """`framework` is "" where the files decide."""

    folder: str
    framework: str = ""
    prediction_class: str = ""


class FolderCheckResult(msgspec.Struct, frozen=True):
    """`framework` is "" where the folder cannot be deployed, `message` says why; `file` is the model's."""

    framework: str = ""
    file: str = ""
    message: str = ""


def check_folder(request: FolderCheckRequest) -> FolderCheckResult:
    folder = Path(request.folder)
    try:
        if request.prediction_class:
            if not folder.is_dir():
                return FolderCheckResult(message=f"There is no folder {folder.name!r}.")
            return FolderCheckResult(detect_framework(folder, request.prediction_class).name)
        known = [one for one in load_frameworks().values() if one.name == request.framework]
        framework = known[0] if known else detect_framework(folder, "")
        return FolderCheckResult(framework.name, find_model_file(folder, framework).name)
    except ServingError as error:
        return FolderCheckResult(message=error.message)
    except OSError as error:
        return FolderCheckResult(message=f"The folder cannot be read: {error.strerror}.")


if __name__ == "__main__":
    sent = msgspec.json.decode(sys.stdin.buffer.read(), type=FolderCheckRequest)
    sys.stdout.buffer.write(msgspec.json.encode(check_folder(sent)))
